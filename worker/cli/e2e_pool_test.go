package cli_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// demo is the command of the README's main job.
const demo = `echo "$TENURE_WORKER has $TENURE_PARTITION under $TENURE_TOKEN"; exec sleep 60`

// The README's main job, and ctrl-C, which reaches the foreground process group.
func TestPoolRunsOneCommandPerPartitionAndInterruptLeavesNothing(t *testing.T) {
	begun := time.Now()
	pool, mark := startDemo(t)
	took := time.Since(begun)
	if limit := most(5 * time.Second); took > limit {
		t.Errorf("eight commands run after %v, want at most %v", took, limit)
	}
	lines := strings.Split(strings.TrimSpace(pool.out.String()), "\n")
	share := make(map[string]int)
	seen, tokens := make(map[int]bool), make(map[uint64]bool)
	for _, line := range lines {
		var worker string
		var partition int
		var token uint64
		if _, err := fmt.Sscanf(line, "%s has %d under %d", &worker, &partition, &token); err != nil || token == 0 || partition >= 8 {
			t.Errorf("line = %q, want a worker, a partition and a token", line)
		}
		share[worker]++
		seen[partition], tokens[token] = true, true
	}
	if got := slices.Sorted(maps.Values(share)); !slices.Equal(got, []int{2, 3, 3}) || len(seen) != 8 || len(tokens) != 8 || len(lines) != 8 {
		t.Errorf("commands said %q, want eight, of eight partitions and tokens, shared out as 3, 3 and 2", lines)
	}
	if runtime.GOOS == "linux" {
		if got := processes(t, pool.Process.Pid, mark); len(got) != 9 {
			t.Errorf("processes = %q, want the pool and eight commands", got)
		}
	}

	interrupted := time.Now()
	pool.signalGroup(syscall.SIGINT)
	if code := pool.code(); code != 0 {
		t.Errorf("work = %d, want 0", code)
	}
	ended := time.Since(interrupted)
	if limit := most(5 * time.Second); ended > limit {
		t.Errorf("the pool ended after %v, want at most %v", ended, limit)
	}
	if runtime.GOOS == "linux" {
		if got := processes(t, pool.Process.Pid, mark); len(got) != 0 {
			t.Errorf("processes = %q, want none left", got)
		}
	}
	if got := strings.Split(strings.TrimSpace(pool.out.String()), "\n"); len(got) != 8 {
		t.Errorf("commands said %q, want nothing more", got[8:])
	}
	t.Logf("eight commands run after %v, everything has ended %v after the interrupt", took.Round(time.Millisecond), ended.Round(time.Millisecond))
}

// A command must not outlive the trust in its partition. The kernel ends it with
// the pool.
func TestKilledPoolLeavesNoCommand(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs the parent-death signal")
	}
	pool, mark := startDemo(t)
	killed := time.Now()
	pool.signalGroup(syscall.SIGKILL)
	pool.code()
	var left []string
	for time.Since(killed) < 10*time.Second {
		if left = processes(t, pool.Process.Pid, mark); len(left) == 0 {
			break
		}
	}
	took := time.Since(killed)
	if limit := most(time.Second); took > limit {
		t.Errorf("%q run %v after the pool was killed, want none after %v", left, took, limit)
	}
	t.Logf("no command runs %v after the pool was killed", took.Round(time.Millisecond))
}

// SIGKILL of the pool ends what its commands have started, too, even in a group of
// the pool's own: long before the trust in the partitions ends. Nothing is left of
// the pool either.
func TestKilledPoolLeavesNoGrandchild(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc to look for processes")
	}
	mark := "TENURE_E2E_MARK=" + rand.Text()
	script := `sh -c 'sleep 300 & wait' & sleep 300 & trap "" TERM; echo up; while :; do sleep 1; done`
	pool := spawn(t, []string{mark}, binary, "work", "demo", "--partitions", "4", "--", "sh", "-c", script)
	t.Cleanup(func() {
		for _, left := range processes(t, pool.Process.Pid, mark) {
			pid, _, _ := strings.Cut(left, " ")
			_ = syscall.Kill(atoi(t, pid), syscall.SIGKILL) // it may have ended
		}
	})
	eventually(t, "four commands run", func() bool { return strings.Count(pool.out.String(), "up") == 4 })
	eventually(t, "each with three others", func() bool { return len(processes(t, pool.Process.Pid, mark)) >= 1+4*4 })
	wardens := processesNamed(t, "warden", pool.Process.Pid)

	killed := time.Now()
	if err := pool.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var left []string
	for time.Since(killed) < 10*time.Second {
		if left = append(processes(t, pool.Process.Pid, mark), alive(wardens)...); len(left) == 0 {
			break
		}
	}
	took := time.Since(killed)
	pool.code()
	if limit := most(time.Second); took > limit {
		t.Errorf("%q run %v after the pool was killed, want none after %v", left, took, limit)
	}
	if len(wardens) != 1 {
		t.Errorf("wardens = %v, want one", wardens)
	}
	t.Logf("no grandchild runs %v after the pool was killed", took.Round(time.Millisecond))
}

// processesNamed returns the children of parent that were started with the argument.
func processesNamed(t *testing.T, argument string, parent int) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, dir := range dirs {
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may have ended
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		_, after, _ := bytes.Cut(stat, []byte(") "))
		fields := strings.Fields(string(after))
		if len(fields) > 1 && fields[1] == strconv.Itoa(parent) && slices.Contains(strings.Split(string(line), "\x00"), argument) {
			found = append(found, filepath.Base(dir))
		}
	}
	return found
}

// alive returns those of the processes that have not ended.
func alive(pids []string) []string {
	return slices.DeleteFunc(slices.Clone(pids), func(pid string) bool {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || bytes.Contains(stat, []byte(") Z "))
	})
}

// startDemo runs the README's main job until all of its commands run. Every process
// of it has the mark in its environment.
func startDemo(t *testing.T) (pool *process, mark string) {
	t.Helper()
	mark = "TENURE_E2E_MARK=" + rand.Text()
	pool = spawn(t, []string{mark}, binary, "work", "demo", "--partitions", "8", "--workers", "3", "--", "sh", "-c", demo)
	t.Cleanup(func() {
		if runtime.GOOS == "linux" {
			for _, left := range processes(t, pool.Process.Pid, mark) {
				pid, _, _ := strings.Cut(left, " ")
				_ = syscall.Kill(atoi(t, pid), syscall.SIGKILL) // it may have ended
			}
		}
	})
	eventually(t, "eight commands run", func() bool { return strings.Count(pool.out.String(), "\n") >= 8 })
	return pool, mark
}

// processes returns pid and name of every process that is in the session, or has
// the variable in its environment. Those that have ended and were not waited for
// do not count.
func processes(t *testing.T, session int, variable string) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, dir := range dirs {
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue // it has ended
		}
		// pid (name) state ppid pgrp session …, and the name may be anything.
		open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
		fields := strings.Fields(string(stat[end+1:]))
		if fields[0] == "Z" || fields[0] == "X" {
			continue
		}
		environ, _ := os.ReadFile(filepath.Join(dir, "environ")) // somebody else's cannot be read
		if fields[3] == strconv.Itoa(session) || slices.Contains(strings.Split(string(environ), "\x00"), variable) {
			found = append(found, filepath.Base(dir)+" "+string(stat[open:end+1]))
		}
	}
	return found
}
