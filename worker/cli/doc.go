// Package cli is the command line of tenure: one file per command, and [Main],
// which picks the command, runs it and turns its error into an exit code.
//
// Standard output carries results only. Logs go to standard error, and so does
// the one line that says why a command failed and what to do.
package cli
