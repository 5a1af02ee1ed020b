package claim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// machine names the boot of the machine and the namespaces of this process, empty
// if they cannot be told.
func machine() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	pids, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	clocks, _ := os.Readlink("/proc/self/ns/time") // old kernels have none
	return digest(strings.Join([]string{string(boot), pids, clocks}, "\n"))
}

// startOf returns when a process began, in ticks since the boot, empty if that
// cannot be told.
func startOf(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The name is in parentheses and may contain anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const start = 22 - 3 // the 22nd field, the first here is the 3rd
	if len(fields) <= start {
		return ""
	}
	return string(fields[start])
}

// noProcess reports proof that there is no process of that number.
func noProcess(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }
