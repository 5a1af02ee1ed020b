package cli

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"tenure/worker/proc"
)

// A terminal is what a child reads from, if that is one and ours at present; else
// its methods do nothing.
//
// The kernel stops whoever reads from a terminal in the background, and a child in
// a process group of its own would be there. So it gets the foreground. The key
// that stops the foreground does nothing meanwhile: nobody could let the child go
// on, since we would not stop with it, but hold the lock.
type terminal struct {
	fd      int // -1 for none
	own     int // our process group
	stopKey byte
}

// openTerminal prepares in for a child, before that starts.
func openTerminal(in io.Reader) *terminal {
	none := &terminal{fd: -1}
	file, ok := in.(*os.File)
	if !ok {
		return none
	}
	t := &terminal{fd: int(file.Fd()), own: unix.Getpgrp()}
	if foreground, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP); err != nil || foreground != t.own {
		return none
	}
	t.stopKey = t.setStopKey(0)
	return t
}

// lend gives the terminal to a child that has been started.
func (t *terminal) lend(child *proc.Group) {
	if t.fd < 0 || unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, child.Pid()) != nil {
		return // the child has ended already
	}
	// We are in the background from here on, where the kernel stops who touches
	// the terminal.
	signal.Ignore(syscall.SIGTTOU)
	_ = child.Signal(syscall.SIGCONT) // if it was faster than we were, it has been stopped
}

// takeBack ends what the others began. Nothing can be done if it fails: then the
// terminal is gone.
func (t *terminal) takeBack() {
	if t.fd >= 0 {
		_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, t.own)
		t.setStopKey(t.stopKey)
	}
}

// setStopKey sets the key that stops the foreground, 0 for none, and returns what
// it was.
func (t *terminal) setStopKey(key byte) (was byte) {
	settings, err := unix.IoctlGetTermios(t.fd, unix.TCGETS)
	if err != nil {
		return key
	}
	was, settings.Cc[unix.VSUSP] = settings.Cc[unix.VSUSP], key
	_ = unix.IoctlSetTermios(t.fd, unix.TCSETS, settings) // it is a convenience
	return was
}
