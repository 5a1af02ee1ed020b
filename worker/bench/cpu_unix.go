//go:build unix

package bench

import (
	"syscall"
	"time"
)

// cpuTime returns how much time this process has had on the cores.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // it cannot fail
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
