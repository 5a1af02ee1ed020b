package cli_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// adminURL waits until the process says where it can be looked at.
func adminURL(t *testing.T, p *process) (url string) {
	t.Helper()
	eventually(t, "the page is served", func() bool {
		for line := range strings.Lines(p.err.String()) {
			var record struct{ Msg, URL string }
			if json.Unmarshal([]byte(line), &record) == nil && strings.HasPrefix(record.Msg, "probes, metrics") {
				url = record.URL
			}
		}
		return url != ""
	})
	return url
}

// fetch gets a URL, with a bearer token if there is one.
func fetch(t *testing.T, url, token string) (code int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(text)
}

func secret(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The probes are there before NATS is, and until everything was handed over.
func TestPoolCanBeLookedAtFromTheFirstMomentToTheLast(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	early := begin(t, nil, "work", "orders", "--partitions", "2", "--server", "nats://127.0.0.1:1", "--connect-timeout", "20s", "--admin", ":0", "--", "true")
	at := adminURL(t, early)
	if !strings.HasPrefix(at, "http://127.0.0.1:") {
		t.Errorf("url = %s, want one of this machine alone", at)
	}
	if code, body := fetch(t, at+"livez", ""); code != 200 {
		t.Errorf("/livez without NATS = %d, %q, want 200", code, body)
	}
	if code, body := fetch(t, at+"readyz", ""); code != 503 {
		t.Errorf("/readyz without NATS = %d, %q, want 503", code, body)
	}
	early.signal(syscall.SIGTERM)
	early.code()

	p := begin(t, nil, "work", "orders", "--partitions", "2", "--server", url, "--admin", "127.0.0.1:0", "--",
		"sh", "-c", `trap 'sleep 1; exit' TERM; sleep 1000 & wait`)
	at = adminURL(t, p)
	eventually(t, "the pool is ready", func() bool { code, _ := fetch(t, at+"readyz", ""); return code == 200 })
	eventually(t, "both partitions run", func() bool {
		_, body := fetch(t, at+"metrics", "")
		return strings.Contains(body, "\ntenure_partitions_held{group=\"orders\"} 2\n") && strings.Contains(body, "\ntenure_nats_connected 1\n")
	})
	time.Sleep(200 * time.Millisecond) // the commands have set their traps
	p.signal(syscall.SIGTERM)
	eventually(t, "the pool is not ready while it drains", func() bool {
		code, body := fetch(t, at+"readyz", "")
		return code == 503 && strings.Contains(body, "it drains")
	})
	if code, _ := fetch(t, at+"livez", ""); code != 200 {
		t.Errorf("/livez while the pool drains = %d, want 200", code)
	}
	if code := p.code(); code != 0 {
		t.Errorf("work = %d, want 0; stderr %s", code, p.err.String())
	}
	if code, _ := fetch(t, at+"livez", ""); code != 0 {
		t.Errorf("/livez after the end = %d, want nobody there", code)
	}
}

func TestSecretsOfThePageComeFromFiles(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tenure.yaml")
	config := "admin: 0.0.0.0:0\nadmin-token-file: " + secret(t, "a token\n") + "\nadmin-user: joe\n"
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p := begin(t, []string{"TENURE_ADMIN_PASSWORD_FILE=" + secret(t, "hunter2"), "XDG_STATE_HOME=" + t.TempDir()},
		"work", "orders", "--partitions", "2", "--config", file, "--log-level", "debug", "--", "sleep", "1000")
	at := strings.Replace(adminURL(t, p), "[::]", "127.0.0.1", 1)
	if code, _ := fetch(t, at+"metrics", ""); code != 401 {
		t.Errorf("/metrics without a token = %d, want 401", code)
	}
	if code, _ := fetch(t, at+"metrics", "a token"); code != 200 {
		t.Errorf("/metrics with the token = %d, want 200", code)
	}
	if code, _ := fetch(t, strings.Replace(at, "http://", "http://joe:hunter2@", 1)+"metrics", ""); code != 200 {
		t.Errorf("/metrics with the password = %d, want 200", code)
	}
	if code, _ := fetch(t, at+"livez", ""); code != 200 {
		t.Errorf("/livez without a token = %d, want 200", code)
	}
	p.signal(syscall.SIGTERM)
	if code := p.code(); code != 0 {
		t.Errorf("work = %d, want 0", code)
	}
	if log := p.err.String(); strings.Contains(log, "a token") || strings.Contains(log, "hunter2") {
		t.Errorf("log %s, want no secret in it", log)
	}
}

func TestWrongUseOfAdmin(t *testing.T) {
	t.Parallel()
	empty, two := secret(t, "\n"), secret(t, "a\nb\n")
	taken := begin(t, nil, "work", "orders", "--partitions", "2", "--server", "nats://127.0.0.1:1", "--admin", ":0", "--", "true")
	address := strings.TrimSuffix(strings.TrimPrefix(adminURL(t, taken), "http://"), "/")
	tests := []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--admin", "0.0.0.0:0"}, 2, `--admin: have "0.0.0.0:0" and neither token nor password, want admin-token-file or admin-user, an address of this machine alone, or admin-open if everybody may look`},
		{[]string{"--admin", "9090"}, 2, `--admin: have "9090", want HOST:PORT or :PORT`},
		{[]string{"--admin", ":http"}, 2, `--admin: have ":http", want HOST:PORT or :PORT`},
		{[]string{"--admin", ":65536"}, 2, `--admin: have ":65536", want HOST:PORT or :PORT`},
		{[]string{"--admin-token-file", empty}, 2, `--admin-token-file: have no address to serve at, want admin with it`},
		{[]string{"--admin", ":0", "--admin-user", "joe"}, 2, `--admin-user: have one of the two, want admin-user and admin-password-file together`},
		{[]string{"--admin", ":0", "--admin-token-file", "/no/such/file"}, 2, `configuration cannot be used: admin-token-file: open /no/such/file: no such file or directory`},
		{[]string{"--admin", ":0", "--admin-token-file", empty}, 2, `configuration cannot be used: admin-token-file: ` + empty + `: have an empty file, want a secret in it`},
		{[]string{"--admin", ":0", "--admin-token-file", two}, 2, `configuration cannot be used: admin-token-file: ` + two + `: have more than one line or 4096 bytes, want a secret alone`},
		{[]string{"--admin", address}, 1, `admin: listen tcp ` + address + `: bind: address already in use; give another address with --admin`},
	}
	for _, tt := range tests {
		code, _, stderr := tenure(t, append(append([]string{"work", "orders", "--partitions", "2", "--server", "nats://127.0.0.1:1"}, tt.args...), "--", "true")...)
		if got := message(t, stderr); code != tt.code || got != tt.want {
			t.Errorf("work %q = %d, %s, want %d, %s", tt.args, code, got, tt.code, tt.want)
		}
	}
	taken.signal(syscall.SIGTERM)
	taken.code()
}
