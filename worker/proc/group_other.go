//go:build !linux && !darwin && !dragonfly && !freebsd && !netbsd && !openbsd

package proc

import (
	"errors"
	"os/exec"
	"syscall"
)

// Process groups as this package means them do not exist here: no child starts.

func ownGroup(*syscall.SysProcAttr) {}

func onStarter(func() error) error { return errors.ErrUnsupported }

func awaitExit(int) {}

func awaitEmpty(int) {}

func ownSession(*exec.Cmd) {}

func signalGroup(int, syscall.Signal) error { return errors.ErrUnsupported }

func resumeGroup(int) error { return errors.ErrUnsupported }
