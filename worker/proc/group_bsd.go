//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package proc

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownGroup asks for a new group. There is no Pdeathsig here.
func ownGroup(attr *syscall.SysProcAttr) {
	attr.Setpgid = true
	attr.Pgid = 0
}

// onStarter runs f here: only Pdeathsig cares for the thread.
func onStarter(f func() error) error { return f() }

// awaitExit waits until the child has ended, and leaves it to be reaped.
// It holds a thread meanwhile.
func awaitExit(pid int) {
	queue, err := unix.Kqueue()
	if err != nil {
		return // cmd.Wait waits instead; the rest of the group is killed early then
	}
	defer func() { _ = unix.Close(queue) }() // only read from
	unix.CloseOnExec(queue)

	var exit [1]unix.Kevent_t
	unix.SetKevent(&exit[0], pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	exit[0].Fflags = unix.NOTE_EXIT
	for {
		// An error other than EINTR says that the child has ended already.
		if _, err := unix.Kevent(queue, exit[:], exit[:], nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
