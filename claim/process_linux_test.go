package claim

import (
	"os"
	"os/exec"
	"testing"
)

// C5, C22, H3: a process is gone only on proof from its own machine.
func TestProcessIsGoneOnlyOnProofFromItsMachine(t *testing.T) {
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	m := member{PID: child.Process.Pid, Machine: machine(), Start: startOf(child.Process.Pid)}
	if m.Machine == "" || m.Start == "" {
		t.Fatalf("member = %+v, want the machine and the start of the process", m)
	}
	check := func(what string, m member, want bool) {
		t.Helper()
		if have := gone(m); have != want {
			t.Errorf("gone for %s = %v, want %v", what, have, want)
		}
	}
	check("a process that runs", m, false)
	check("this process", member{PID: os.Getpid(), Machine: machine(), Start: startOf(os.Getpid())}, false)
	earlier := m
	earlier.Start = "1"
	check("a process whose number another one has now", earlier, true)
	_ = child.Process.Kill()
	_ = child.Wait()
	check("a process that has ended", m, true)
	elsewhere := m
	elsewhere.Machine = "another"
	check("a process of another machine or namespace", elsewhere, false)
	for _, unknown := range []member{{}, {PID: m.PID, Start: m.Start}, {PID: m.PID, Machine: m.Machine}, {Machine: m.Machine, Start: m.Start}} {
		check("a process of which too little is known", unknown, false)
	}
}
