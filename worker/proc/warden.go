package proc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// wardenPatience is how long a start waits for a warden that does not read.
const wardenPatience = time.Second

// warden is that of this process, nil without one.
var warden atomic.Pointer[Warden]

// A Warden is a process that outlives this one, and kills what is left of its groups
// when it has ended, however it ends: SIGKILL too. It knows a group from when [Start]
// returns: what a child has started in the moment before may be left.
type Warden struct {
	cmd  *exec.Cmd
	pipe *os.File // groups that begin and end; its end is ours
}

// Ward starts cmd, a program that calls [Guard] with its standard input and does
// nothing else, as the warden of all groups that [Start] starts from then on. There is
// one at most; it is in a session of its own, so that a signal to this process's group
// or terminal does not reach it.
func Ward(cmd *exec.Cmd) (*Warden, error) {
	in, pipe, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("proc: warden: %w", err)
	}
	defer func() { _ = in.Close() }() // it has its own
	cmd.Stdin = in
	ownSession(cmd)
	if err := cmd.Start(); err != nil {
		_ = pipe.Close() // nobody reads
		return nil, fmt.Errorf("proc: warden: %w", err)
	}
	w := &Warden{cmd: cmd, pipe: pipe}
	warden.Store(w)
	return w, nil
}

// Close ends the warden, which kills the groups that are left, and waits for it.
func (w *Warden) Close() error {
	warden.CompareAndSwap(w, nil)
	return errors.Join(w.pipe.Close(), w.cmd.Wait())
}

// tell tells the warden, if there is one, that the group has begun or ended. If it
// does not hear, the group has what this process does for it.
func tell(what byte, pgid int) {
	if w := warden.Load(); w != nil {
		_ = w.pipe.SetWriteDeadline(time.Now().Add(wardenPatience)) // a pipe takes it
		_, _ = w.pipe.WriteString(string(what) + strconv.Itoa(pgid) + "\n")
	}
}

const (
	groupBegins = '+'
	groupEnds   = '-'
)

// Guard is the work of a [Warden]: it reads from the process that it watches over
// which groups there are, until that has ended, and kills those that are left then.
// It ignores what asks it to end before.
func Guard(in io.Reader) {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	groups := make(map[int]bool)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		line := lines.Text()
		if line == "" {
			continue
		}
		pgid, err := strconv.Atoi(strings.TrimLeft(line, "+-"))
		switch {
		case err != nil || pgid < 2:
		case line[0] == groupBegins:
			groups[pgid] = true
		default:
			delete(groups, pgid)
		}
	}
	for pgid := range groups {
		_ = signalGroup(pgid, syscall.SIGKILL) // nobody left is what we want
	}
}
