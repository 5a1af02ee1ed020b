package verify

import (
	"io"
	"strings"
)

// Judge returns what a witness finds wrong with the lines of children. A line "killed
// NAME" is no line of a child.
func Judge(lines ...string) (overlaps int, wrong []string) {
	w := newWitness()
	for _, line := range lines {
		if who, ok := strings.CutPrefix(line, "killed "); ok {
			w.leaves(who, "killed")
			continue
		}
		w.read(io.Reader(strings.NewReader(line + "\n")))
	}
	return w.overlaps, w.wrong
}
