package cli_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"tenure/config"
	"tenure/worker/cli"
)

const deploy = "../../docs/deploy/"

// A unit is a file of systemd: the values of its settings.
type unit map[string]string

func readUnit(t *testing.T, name string) unit {
	t.Helper()
	text, err := os.ReadFile(deploy + "systemd/" + name)
	if err != nil {
		t.Fatal(err)
	}
	u := make(unit)
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			u[key] = value
		}
	}
	return u
}

// work returns the arguments of `tenure work` in a command line, with another command to
// run after --.
func work(t *testing.T, args, command []string) []string {
	t.Helper()
	dashes := slices.Index(args, "--")
	if len(args) == 0 || args[0] != "work" || dashes < 0 || dashes == len(args)-1 {
		t.Fatalf("command line = %q, want tenure work … -- a command", args)
	}
	return append(slices.Clone(args[:dashes+1]), command...)
}

// settings returns what the pool goes by: flags over the file over defaults.
func settings(t *testing.T, args []string, file string) *config.Config {
	t.Helper()
	cfg := new(config.Config)
	var environ []string
	for i, arg := range args {
		for flag, variable := range map[string]string{"--ttl": "TENURE_TTL", "--drain-timeout": "TENURE_DRAIN_TIMEOUT", "--grace": "TENURE_GRACE"} {
			if value, ok := strings.CutPrefix(arg, flag+"="); ok {
				environ = append(environ, variable+"="+value)
			} else if arg == flag {
				environ = append(environ, variable+"="+args[i+1])
			}
		}
	}
	if err := cfg.Load(config.Sources{Flags: func(string) bool { return false }, Environ: environ, File: file}); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// notifications receives what a service manager is told.
func notifications(t *testing.T) (path string, next func() string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "n") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = os.RemoveAll(dir)
	})
	return path, func() string {
		t.Helper()
		buffer := make([]byte, 4096)
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second)) // fails for no open connection
		n, err := conn.Read(buffer)
		if err != nil {
			t.Fatalf("nothing is told: %v", err)
		}
		return string(buffer[:n])
	}
}

// The line of the unit, as systemd runs it: what it is told, in which order.
func TestUnitRunsThePoolAndSystemdIsToldHowItIs(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	u := readUnit(t, "tenure-orders.service")
	line := strings.Fields(u["ExecStart"])
	if filepath.Base(line[0]) != "tenure" || u["Type"] != "notify" || u["KillMode"] != "mixed" {
		t.Fatalf("unit = %q, want one that runs tenure and is told when it is ready", u)
	}
	args := work(t, line[1:], []string{"sh", "-c", `echo "told [$NOTIFY_SOCKET$WATCHDOG_USEC]"; trap 'sleep 1; exit' TERM; sleep 1000 & wait`})
	for i := range args {
		args[i] = strings.ReplaceAll(strings.ReplaceAll(args[i], "%H", "host-1"), "/etc/tenure/", deploy+"systemd/")
	}
	file := args[slices.Index(args, "--config")+1]
	if stop, most := seconds(t, u["TimeoutStopSec"]), cli.StopTimeout(settings(t, args, file)); stop <= most {
		t.Errorf("TimeoutStopSec = %v, want more than the %v that the end may take", stop, most)
	}
	if start := seconds(t, u["TimeoutStartSec"]); start < 75*time.Second {
		t.Errorf("TimeoutStartSec = %v, want more than a quarantine of a minute", start)
	}

	socket, next := notifications(t)
	begun := time.Now()
	p := begin(t, []string{"NATS_URL=" + url, "TENURE_ADMIN=127.0.0.1:0", "NOTIFY_SOCKET=" + socket, "WATCHDOG_USEC=400000"}, args...)
	ready := next()
	for ; ready == "WATCHDOG=1"; ready = next() { // it is alive before it is ready
		if time.Since(begun) > 30*time.Second {
			t.Fatal("the pool does not get ready")
		}
	}
	if ready != "READY=1" {
		t.Errorf("systemd is told %q first, want that it is ready", ready)
	}
	if code, _ := fetch(t, adminURL(t, p)+"readyz", ""); code != 200 {
		t.Errorf("/readyz = %d after systemd was told that it is ready", code)
	}
	if status := readStatus(t, url, "orders"); len(status.Workers) != 1 || status.Workers[0].ID != "host-1" {
		t.Errorf("workers = %+v, want host-1", status.Workers)
	}
	awaitOwners(t, url, "orders", "host-1")
	eventually(t, "all commands run", func() bool { return strings.Count(p.out.String(), "\n") == 16 })
	if got := p.out.String(); strings.Contains(strings.ReplaceAll(got, "told []", ""), "told") {
		t.Errorf("commands print %q, want them to know nothing of the socket", got)
	}
	for range 3 {
		if got := next(); got != "WATCHDOG=1" {
			t.Errorf("systemd is told %q, want a sign of life", got)
		}
	}
	p.signal(syscall.SIGTERM)
	signs := 0
	for got := next(); got != "STOPPING=1"; got = next() {
		if got != "WATCHDOG=1" {
			t.Errorf("systemd is told %q, want that it stops", got)
		}
	}
	for range 3 { // the commands take a second to end
		if next() == "WATCHDOG=1" {
			signs++
		}
	}
	if code := p.code(); code != 0 || signs != 3 {
		t.Errorf("work = %d with %d signs of life during the drain, want 0 with 3; stderr %s", code, signs, p.err.String())
	}
}

// A pool that waits for a server is alive, and not ready.
func TestSystemdIsNotToldReadyBeforeThereIsAServer(t *testing.T) {
	t.Parallel()
	socket, next := notifications(t)
	p := begin(t, []string{"NOTIFY_SOCKET=" + socket, "WATCHDOG_USEC=200000"}, append([]string{"work", "orders", "--partitions", "2", "--server", "nats://127.0.0.1:1"}, sleeper...)...)
	for range 5 {
		if got := next(); got != "WATCHDOG=1" {
			t.Errorf("systemd is told %q, want signs of life only", got)
		}
	}
	p.signal(syscall.SIGTERM)
	got := next()
	for ; got == "WATCHDOG=1"; got = next() {
	}
	if code := p.code(); got != "STOPPING=1" || code != 0 {
		t.Errorf("systemd is told %q, work = %d, want that it stops, and 0", got, code)
	}
}

func seconds(t *testing.T, text string) time.Duration {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%q is no number of seconds", text)
	}
	return time.Duration(n) * time.Second
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

// A manifest is what the tests look at of an object of Kubernetes.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		ServiceName string `yaml:"serviceName"`
		Selector    any
		Template    struct {
			Metadata struct{ Annotations map[string]string }
			Spec     struct {
				Grace      int `yaml:"terminationGracePeriodSeconds"`
				Containers []struct {
					Command, Args []string
					Env           []struct {
						Name, Value string
						ValueFrom   struct {
							FieldRef struct {
								FieldPath string `yaml:"fieldPath"`
							} `yaml:"fieldRef"`
						} `yaml:"valueFrom"`
					}
					Ports []struct {
						Name          string
						ContainerPort int `yaml:"containerPort"`
					}
					LivenessProbe  probe `yaml:"livenessProbe"`
					ReadinessProbe probe `yaml:"readinessProbe"`
					Lifecycle      struct {
						PreStop struct {
							Sleep struct{ Seconds int }
						} `yaml:"preStop"`
					}
					VolumeMounts []struct {
						MountPath string `yaml:"mountPath"`
					} `yaml:"volumeMounts"`
				}
			}
		}
	}
}

func readManifests(t *testing.T, name string) (all []manifest) {
	t.Helper()
	text, err := os.ReadFile(deploy + "kubernetes/" + name)
	if err != nil {
		t.Fatal(err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var m manifest
		switch err := dec.Decode(&m); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		}
		all = append(all, m)
	}
}

// The arguments of the manifests start a pool; its probes are where they are looked for,
// and it is given the time that its end may take.
func TestManifestsOfKubernetesRunThePool(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"deployment.yaml", "statefulset.yaml"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := startServer(t)
			all := readManifests(t, name)
			m := all[0]
			if m.Kind == "StatefulSet" && (len(all) != 2 || all[1].Kind != "Service" || all[1].Metadata.Name != m.Spec.ServiceName) {
				t.Errorf("the service %q of the set is not there", m.Spec.ServiceName)
			}
			pod := m.Spec.Template.Spec
			c := pod.Containers[0]
			if !slices.Equal(c.Command, []string{"tenure"}) {
				t.Errorf("command = %q, want tenure", c.Command)
			}
			grace := time.Duration(pod.Grace-c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
			if most := cli.StopTimeout(settings(t, c.Args, "")); grace <= most {
				t.Errorf("grace period after the preStop = %v, want more than the %v that the end may take", grace, most)
			}
			args := work(t, c.Args, sleeper[1:])
			environ := []string{"NATS_URL=" + url}
			id := ""
			for _, v := range c.Env {
				if v.ValueFrom.FieldRef.FieldPath == "metadata.name" {
					id = m.Metadata.Name + "-0"
					for i := range args {
						args[i] = strings.ReplaceAll(args[i], "$("+v.Name+")", id)
					}
				}
			}
			token := ""
			args = slices.DeleteFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--creds=") }) // the server asks for none
			for i, arg := range args {
				switch flag, value, _ := strings.Cut(arg, "="); flag {
				case "--admin":
					_, port, err := net.SplitHostPort(value)
					if err != nil || len(c.Ports) != 1 || c.Ports[0].Name != "admin" || strconv.Itoa(c.Ports[0].ContainerPort) != port ||
						m.Spec.Template.Metadata.Annotations["prometheus.io/port"] != port {
						t.Errorf("--admin = %s, ports = %+v, want the same", value, c.Ports)
					}
					args[i] = "--admin=0.0.0.0:0"
				case "--admin-token-file":
					if !strings.HasPrefix(value, c.VolumeMounts[0].MountPath+"/") {
						t.Errorf("%s is not in a volume", value)
					}
					token = "a token"
					args[i] = "--admin-token-file=" + secret(t, token)
				}
			}
			p := begin(t, environ, args...)
			awaitOwners(t, url, "orders", id)
			at := regexp.MustCompile(`//[^/]*:`).ReplaceAllString(adminURL(t, p), "//127.0.0.1:")
			for _, probe := range []probe{c.LivenessProbe, c.ReadinessProbe} {
				if code, body := fetch(t, at+strings.TrimPrefix(probe.HTTPGet.Path, "/"), ""); code != 200 || probe.HTTPGet.Port != "admin" {
					t.Errorf("probe %+v = %d, %s, want 200 without a token", probe, code, body)
				}
			}
			if code, _ := fetch(t, at+"metrics", token); code != 200 {
				t.Errorf("/metrics = %d, want 200", code)
			}
			p.signal(syscall.SIGTERM)
			if code := p.code(); code != 0 {
				t.Errorf("work = %d, want 0; stderr %s", code, p.err.String())
			}
		})
	}
}
