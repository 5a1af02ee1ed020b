package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWrongUsageIsOneLineAndExitCode2(t *testing.T) {
	t.Parallel()
	tests := []struct {
		args []string
		want string
	}{
		{[]string{"sevrer"}, `unexpected argument sevrer, did you mean "server"?; see --help`},
		{[]string{"server", "--lisen", "x"}, `unknown flag --lisen, did you mean "--listen"?; see --help`},
		{[]string{"server", "x\ny\x1b[2J"}, `unexpected argument x\x0ay\x1b[2J; see --help`},
		{[]string{"server", "--listen", "here"}, `embedded: option Listen: have "here", want "host:port" with a port from 0 to 65535`},
		{[]string{"server", "--cluster", "2"}, "embedded: option Cluster: have 2, want 1 or 3"},
		{[]string{"server", "--store", "x", "--sync", "never"}, `--sync: have "never", want always, or an interval such as 2m`},
		{[]string{"init", "--storage", "tape"}, `--storage: have "tape", want file or memory`},
		{[]string{"init", "--replicas", "0"}, "--replicas: have 0, want 1 to 5"},
		{[]string{"init", "--max-ttl", "0s"}, "--max-ttl: have 0s, want whole seconds, at least 2s"},
		{[]string{"init", "--max-ttl", "2500ms"}, "--max-ttl: have 2.5s, want whole seconds, at least 2s"},
		{[]string{"init", "--max-ttl", "long"}, `--max-ttl: have "long", want a duration such as 15s; see --help`},
		{[]string{"init", "--bucket", ""}, `--bucket: have "", want 1 to 200 letters, digits, '-' and '_'`},
		{[]string{"init", "--bucket", "a.b\n"}, `--bucket: have "a.b\n", want 1 to 200 letters, digits, '-' and '_'`},
		{[]string{"init", "--log-format", "xml"}, `--log-format: have "xml", want auto, text or json`},
		{[]string{"init", "--server", "http://x"}, `--server: have scheme http in "http://x", want URLs such as nats://127.0.0.1:4222, separated by commas`},
		{[]string{"init", "--config", "/no/such/file"}, "configuration cannot be used: open /no/such/file: no such file or directory"},
		{[]string{"init", "--creds", "/no/such/file"}, "configuration cannot be used: creds: open /no/such/file: no such file or directory"},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			t.Parallel()
			code, out, stderr := tenure(t, tt.args...)
			if code != 2 || out != "" {
				t.Errorf("exit code %d, stdout %q, want 2, nothing", code, out)
			}
			if lines := strings.Split(strings.TrimSpace(stderr), "\n"); len(lines) > 1 {
				stderr = lines[len(lines)-1] // a warning of the server comes first
			}
			if got := message(t, stderr); got != tt.want {
				t.Errorf("message = %s, want %s", got, tt.want)
			}
		})
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	t.Parallel()
	for _, command := range commands {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			code, out, stderr := tenure(t, append(strings.Fields(command), "--help")...)
			if code != 0 || stderr != "" {
				t.Errorf("exit code %d, stderr %q, want 0, nothing", code, stderr)
			}
			for _, want := range []string{"Usage: tenure " + command, "Example:\n\n    tenure " + command, "--server=URL", "--bucket=NAME", "--config=FILE", "--log-format=FORMAT"} {
				if !strings.Contains(out, want) {
					t.Errorf("help lacks %q:\n%s", want, out)
				}
			}
		})
	}
}

func TestFileVariablesAndFlagsReachACommand(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tenure.yaml")
	if err := os.WriteFile(file, []byte("bucket: no.name\nlog-format: text\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		env  []string
		args []string
		want string // at the end of stderr
	}{
		{[]string{"TENURE_CONFIG=" + file}, nil, `ERR ` + file + `:1: bucket: have "no.name", want 1 to 200 letters, digits, '-' and '_' exit=2`},
		{[]string{"TENURE_CONFIG=" + file, "TENURE_BUCKET=b*"}, nil, `ERR TENURE_BUCKET: have "b*", want 1 to 200 letters, digits, '-' and '_' exit=2`},
		{[]string{"TENURE_BUCKET=b*"}, []string{"--config", file, "--bucket", "c>"}, `ERR --bucket: have "c>", want 1 to 200 letters, digits, '-' and '_' exit=2`},
	}
	for _, tt := range tests {
		p := begin(t, tt.env, append([]string{"init", "--log-format", "text"}, tt.args...)...)
		if code, got := p.code(), p.err.String(); code != 2 || !strings.HasSuffix(got, " "+tt.want+"\n") {
			t.Errorf("exit code %d, stderr %q, want 2, %q", code, got, tt.want)
		}
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	t.Parallel()
	p := begin(t, []string{"NATS_PASSWORD=hunter2", "NATS_USER=joe", "NATS_URL=nats://joe:hunter2@127.0.0.1:1"},
		"init", "--connect-timeout", "200ms", "--log-level", "debug")
	if code := p.code(); code != 69 {
		t.Errorf("exit code %d, want 69", code)
	}
	if got := p.err.String() + p.out.String(); strings.Contains(got, "hunter2") {
		t.Errorf("output %s, want no secret in it", got)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	code, out, stderr := tenure(t, "version")
	if code != 0 || stderr != "" || !strings.HasPrefix(out, "tenure ") || strings.Count(out, "\n") != 1 {
		t.Errorf("version = %d, %q, %q, want 0 and one line", code, out, stderr)
	}
	code, out, _ = tenure(t, "version", "--json")
	var v struct {
		Version string `json:"version"`
		Go      string `json:"go"`
		Server  string `json:"nats_server"`
		Client  string `json:"nats_client"`
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != 0 || v.Version == "" || v.Go == "" || v.Server == "" || v.Client == "" {
		t.Errorf("version --json = %d, %q, want 0 and an object", code, out)
	}
}
