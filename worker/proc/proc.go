// Package proc runs a child in a process group of its own, so that signals
// reach the child and everything it started, and nothing of it is left behind.
//
// What is promised:
//
//   - A signal goes to the whole group, and never to a stranger: the group is
//     signalled only while its number cannot have been given away.
//   - When the child has ended, what is left of its group is killed. [Group.Wait]
//     returns after that. So a grandchild gets no more time than the child takes.
//   - On Linux the child is killed by the kernel when this process ends, however it
//     ends. A program that changes its user on exec (setuid) loses that tie.
//   - With a [Warden] all of the group is killed then, grandchildren too, and on other
//     unixes as well.
//
// What is not: a process that left the group (setsid, setpgid, a daemon) is beyond
// reach. If the warden is killed together with this process, or this process between
// the start of a child and the moment that the warden knows of it (microseconds),
// grandchildren are left, and outside of Linux the child. A supervisor that kills all
// of a control group, as systemd does, or a container, leaves nothing.
package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// outputDelay is how long the output of an ended child is read on when a process
// that left the group keeps it open.
const outputDelay = time.Second

// ErrShut reports that a [Gate] is shut and no child was started.
var ErrShut = errors.New("no child starts any more")

// A Group is a started child and the process group that it leads.
// All methods may be called by several goroutines at once.
type Group struct {
	cmd  *exec.Cmd
	done chan struct{}

	// Written before done is closed.
	err  error
	code int

	mu   sync.Mutex
	pgid int
	over bool // the group's number may be anybody's: no signals any more
}

// Start starts cmd as the leader of a new process group.
//
// Start owns cmd from then on: do not call cmd's Wait or signal its process.
// Attributes set in cmd.SysProcAttr are kept. If cmd was made by
// [exec.CommandContext], the end of its context kills the whole group. A zero
// cmd.WaitDelay becomes one second, so that a daemon which keeps the output
// open cannot hold up Wait.
func Start(cmd *exec.Cmd) (*Group, error) {
	g := &Group{cmd: cmd, done: make(chan struct{}), code: -1}
	attr := syscall.SysProcAttr{}
	if cmd.SysProcAttr != nil {
		attr = *cmd.SysProcAttr
	}
	ownGroup(&attr)
	cmd.SysProcAttr = &attr
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = outputDelay
	}
	if cmd.Cancel != nil {
		cmd.Cancel = g.Kill
	}

	// The context of cmd may end at once and call Kill, which waits here until
	// the group has its number.
	g.mu.Lock()
	err := onStarter(cmd.Start)
	if err == nil {
		g.pgid = cmd.Process.Pid
		tell(groupBegins, g.pgid)
	}
	g.over = err != nil
	g.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("proc: start: %w", err)
	}
	go g.wait()
	return g, nil
}

// Signal sends sig to every process of the group. A group that was stopped is
// continued by any signal that asks it to end, since it could not obey.
//
// The error is [os.ErrProcessDone] if the child has ended.
func (g *Group) Signal(sig os.Signal) error {
	number, ok := sig.(syscall.Signal)
	if !ok {
		return fmt.Errorf("proc: signal: have %v, want a syscall.Signal", sig)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return os.ErrProcessDone
	}
	if err := signalGroup(g.pgid, number); err != nil {
		return err
	}
	switch number {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT:
		_ = resumeGroup(g.pgid) // the signal has arrived; if they cannot run on, Kill comes
	}
	return nil
}

// Kill kills every process of the group. It does not wait.
//
// The error is [os.ErrProcessDone] if the child has ended.
func (g *Group) Kill() error { return g.Signal(syscall.SIGKILL) }

// Wait waits until the child has ended, the rest of its group was killed and
// its output was read to the end. It returns what [exec.Cmd.Wait] returned: nil
// for exit code 0, an [*exec.ExitError] otherwise. It may be called repeatedly.
func (g *Group) Wait() error {
	<-g.done
	return g.err
}

// Done is closed when Wait would return.
func (g *Group) Done() <-chan struct{} { return g.done }

// Pid returns the child's process id, which is also the group's.
func (g *Group) Pid() int { return g.pgid }

// ExitCode returns the child's exit code, 128+n if signal n ended it, and -1
// before [Group.Done] is closed.
func (g *Group) ExitCode() int {
	select {
	case <-g.done:
		return g.code
	default:
		return -1
	}
}

// wait takes the end of the group, once: it alone reaps the child.
//
// The order matters. While the ended child is not reaped, its number, and so
// the group's, stays taken. So the rest of the group is killed, and signals are
// shut off, before the child is reaped; afterwards the number may belong to an
// innocent process.
func (g *Group) wait() {
	defer close(g.done)

	awaitExit(g.pgid)
	g.mu.Lock()
	_ = signalGroup(g.pgid, syscall.SIGKILL) // nobody left is what we want
	g.over = true
	g.mu.Unlock()
	tell(groupEnds, g.pgid)

	g.err = g.cmd.Wait()
	if errors.Is(g.err, exec.ErrWaitDelay) {
		g.err = nil // the child ended with 0; who keeps its output open is not its affair
	}
	g.code = exitCode(g.cmd.ProcessState)
	awaitEmpty(g.pgid)
}

// exitCode follows the shells.
func exitCode(state *os.ProcessState) int {
	if state == nil {
		return -1
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// A Gate starts children until it is shut. The zero Gate is open.
type Gate struct {
	mu   sync.RWMutex
	shut bool
}

// Start is like the function [Start], but returns [ErrShut] once the gate is shut.
func (g *Gate) Start(cmd *exec.Cmd) (*Group, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.shut {
		return nil, fmt.Errorf("proc: start: %w", ErrShut)
	}
	return Start(cmd)
}

// Shut shuts the gate. It waits for starts under way: when it returns, every
// child there will ever be has been returned by Start or is about to be.
func (g *Gate) Shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
}
