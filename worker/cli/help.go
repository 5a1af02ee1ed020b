package cli

import (
	"bytes"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// printHelp prints kong's help, with the usage line of the commands that run
// another one as they have to be written.
func printHelp(options kong.HelpOptions, ctx *kong.Context) error {
	out := ctx.Stdout
	defer func() { ctx.Stdout = out }()
	var page bytes.Buffer
	ctx.Stdout = &page
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
		return err
	}
	text := strings.ReplaceAll(page.String(), " [<command> ...] [flags]", " [flags] -- <command> ...")
	_, err := io.WriteString(out, text)
	return err
}

// describe returns the help of a flag with its variable and its default.
func describe(value *kong.Value) string {
	var notes []string
	if variable := value.Tag.Get("environ"); variable != "" {
		notes = append(notes, "$"+variable)
	}
	if value.HasDefault {
		notes = append(notes, "default "+value.Default)
	}
	if notes == nil {
		return value.Help
	}
	return strings.TrimSuffix(value.Help, ".") + " (" + strings.Join(notes, ", ") + ")."
}
