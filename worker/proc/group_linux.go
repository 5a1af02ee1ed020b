package proc

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownGroup asks for a new group, and for the child's death with ours.
func ownGroup(attr *syscall.SysProcAttr) {
	attr.Setpgid = true
	attr.Pgid = 0
	attr.Pdeathsig = syscall.SIGKILL
}

// starts carries work to the starter.
var (
	starts      = make(chan func())
	startStarts sync.Once
)

// onStarter runs f on the thread that starts all children.
//
// The kernel kills a child with Pdeathsig set when the *thread* that started it
// ends, and the Go runtime ends threads as it likes. So one thread, bound to a
// goroutine that never ends, starts every child.
func onStarter(f func() error) error {
	startStarts.Do(func() { go starter() })
	result := make(chan error, 1) // holds the one result, so that the starter never waits
	starts <- func() { result <- f() }
	return <-result
}

// starter owns the thread. It never returns, by design.
func starter() {
	runtime.LockOSThread()
	for f := range starts {
		f()
	}
}

// awaitExit waits until the child has ended, and leaves it to be reaped.
//
// It waits through the runtime's poller, since a thousand children that are
// waited for by a system call hold a thousand threads.
func awaitExit(pid int) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil { // kernel before 5.10, or no permission
		_ = ended(unix.P_PID, pid, 0)
		return
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	defer func() { _ = file.Close() }() // only read from
	raw, err := file.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool { return ended(unix.P_PIDFD, int(fd), unix.WNOHANG) })
	}
	if err != nil { // a poller that does not take it
		_ = ended(unix.P_PID, pid, 0)
	}
}

// ended reports whether the child has ended. Without [unix.WNOHANG] it waits for it.
// An error means that there is nothing left to wait for.
func ended(kind, id, flags int) bool {
	for {
		var info unix.Siginfo
		err := unix.Waitid(kind, id, &info, unix.WEXITED|unix.WNOWAIT|flags, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN): // a non-blocking pidfd of a running child
			return false
		case err != nil:
			return true
		default:
			return info.Signo != 0
		}
	}
}
