//go:build !linux

package cli_test

import "os/exec"

// startTied starts cmd.
func startTied(cmd *exec.Cmd) error { return cmd.Start() }
