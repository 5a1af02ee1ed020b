package cli_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// blocks are the commands of the docs that are marked: run, or start and leave running.
var blocks = regexp.MustCompile("(?s)<!-- (run|start) -->\n```sh\n(.*?)```")

// The commands of docs/operations.md, one after the other, as an operator types them.
func TestCommandsOfTheOperatorsPageWork(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, url := startServer(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	_ = ln.Close() // some other process could take it: that is said by name
	environ := []string{"PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "NATS_URL=" + url}
	sh := func(line string) *process {
		p := &process{Cmd: exec.Command("sh", "-c", "exec "+line), t: t, done: make(chan struct{})}
		p.Env, p.Stdout, p.Stderr = environ, &p.out, &p.err
		p.launch()
		return p
	}
	sh("tenure lock nightly -- sleep 1000") // what a later one breaks
	eventually(t, "the lock is held", func() bool {
		_, out, _ := tenure(t, "locks", "--server", url)
		return strings.Contains(out, "nightly")
	})
	ran := 0
	var pools []*process
	for _, block := range blocks.FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[2]) {
			line = strings.ReplaceAll(strings.TrimSpace(line), "127.0.0.1:9090", address)
			ran++
			if block[1] == "start" {
				pools = append(pools, sh(line))
				continue
			}
			p := sh(line)
			if code := p.code(); code != 0 || p.out.String() == "" {
				t.Errorf("%s = %d, %q, want 0 and an answer; stderr %s", line, code, p.out.String(), p.err.String())
			}
		}
		if block[1] == "start" {
			awaitOwners(t, url, "orders", "host-1", "host-2")
		}
	}
	if ran < 15 || len(pools) != 2 {
		t.Errorf("commands = %d with %d pools, want those of the page", ran, len(pools))
	}
	if code, _ := fetch(t, "http://"+address+"/readyz", ""); code != 200 {
		t.Errorf("/readyz = %d, want 200", code)
	}
	awaitOwners(t, url, "orders", "host-1", "host-2")
	if status := readStatus(t, url, "orders"); len(status.Partitions) != 32 {
		t.Errorf("partitions = %d, want the 32 of the resize", len(status.Partitions))
	}
	for _, p := range pools {
		p.signal(syscall.SIGTERM)
	}
	for _, p := range pools {
		if code := p.code(); code != 0 {
			t.Errorf("%q = %d, want 0; stderr %s", p.Args, code, p.err.String())
		}
	}
}
