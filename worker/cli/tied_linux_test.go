package cli_test

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

var (
	starts   = make(chan func())
	starting sync.Once
)

// startTied starts cmd and has it killed when the test binary ends, however that
// ends: no clean-up runs when a test takes longer than it may.
//
// The kernel looks at the thread that started it, so that one must not end before.
func startTied(cmd *exec.Cmd) error {
	starting.Do(func() {
		go func() {
			runtime.LockOSThread()
			for start := range starts {
				start()
			}
		}()
	})
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	result := make(chan error, 1) // holds the one result
	starts <- func() { result <- cmd.Start() }
	return <-result
}
