package cli

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// printTable prints rows in columns.
func printTable(w io.Writer, rows ...[]string) error {
	var page bytes.Buffer
	table := tabwriter.NewWriter(&page, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		_, _ = io.WriteString(table, strings.Join(row, "\t")+"\n") // a buffer takes everything
	}
	_ = table.Flush()
	for line := range strings.Lines(page.String()) {
		if _, err := io.WriteString(w, strings.TrimRight(line, " \n")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// shown returns a text that users made up as it may stand in a table: quoted if it
// is empty or has anything in it that moves the cursor or looks like a gap.
func shown(text string) string {
	quoted := strconv.Quote(text)
	if text == "" || quoted != `"`+text+`"` || strings.IndexFunc(text, unicode.IsSpace) >= 0 {
		return quoted
	}
	return text
}
