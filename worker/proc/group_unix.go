//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd

package proc

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// emptyWait is how long an ended group is given to vanish. A killed process is
// gone in microseconds; only one that nobody reaps, or that hangs in the kernel,
// takes longer, and neither runs code any more.
const emptyWait = 100 * time.Millisecond

// ownSession asks for a session, and so a group, of its own.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// signalGroup sends sig to every process of the group.
func signalGroup(pgid int, sig syscall.Signal) error {
	err := syscall.Kill(-pgid, sig)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ESRCH):
		return os.ErrProcessDone
	default:
		return os.NewSyscallError("kill", err)
	}
}

// resumeGroup lets a stopped group run on.
func resumeGroup(pgid int) error { return signalGroup(pgid, syscall.SIGCONT) }

// awaitEmpty waits until the killed rest of the group is gone. Signal 0 harms
// nobody, should the number belong to somebody else by now.
func awaitEmpty(pgid int) {
	if syscall.Kill(-pgid, 0) != nil {
		return
	}
	pause := 100 * time.Microsecond
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for waited := time.Duration(0); waited < emptyWait; waited += pause {
		<-timer.C
		if syscall.Kill(-pgid, 0) != nil {
			return
		}
		pause *= 2
		timer.Reset(pause)
	}
}
