package cli_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestChildReadsFromTheTerminal(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	// The key that stops the foreground would stop the child, with nobody to let it go on.
	const script = `echo ready; read line; echo "got $line"; exec sleep 1000`
	screen, terminal := openTerminal(t)
	p := &process{Cmd: exec.Command(binary, "lock", "--server", url, "job", "--", "sh", "-c", script), t: t, done: make(chan struct{})}
	p.Env = []string{"PATH=" + os.Getenv("PATH")}
	p.Stdin, p.Stdout, p.Stderr = terminal, terminal, &p.err
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p.launch()

	lines := bufio.NewReader(screen)
	await := func(want string) {
		t.Helper()
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("%v before %q; stderr %s", err, want, p.err.String())
			}
			if strings.Contains(line, want) {
				return
			}
		}
	}
	await("ready")
	write := func(keys string) {
		t.Helper()
		if _, err := screen.WriteString(keys); err != nil {
			t.Fatal(err)
		}
	}
	write("\x1ahello\n")
	await("got \x1ahello")
	write("\x03")
	if code := p.code(); code != 128+2 {
		t.Errorf("lock = %d, want 130; stderr %s", code, p.err.String())
	}
	if foreground, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP); err == nil && foreground != p.Process.Pid {
		t.Errorf("foreground is %d, want it given back to %d", foreground, p.Process.Pid)
	}
}

// openTerminal returns a terminal, and the screen and keyboard of it.
func openTerminal(t *testing.T) (screen, terminal *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("needs a pseudo terminal: ", err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	raw, err := screen.SyscallConn() // Fd would take away the deadline
	if err != nil {
		t.Fatal(err)
	}
	var number int
	var unlocked error
	err = raw.Control(func(fd uintptr) {
		if unlocked = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); unlocked == nil {
			number, unlocked = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	})
	if err := errors.Join(err, unlocked); err != nil {
		t.Fatal(err)
	}
	if err := screen.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	return screen, terminal
}
