package main

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// allowed says what each package may import: packages of this module by their
// path below it, and others by the beginning of their path. The standard library
// is always allowed. A package that is not listed fails the test, so that a new
// one gets its place in the house.
var allowed = map[string][]string{
	"": {"worker/cli"},

	"kvlock/bucket": {"github.com/nats-io/nats.go"},
	"kvlock":        {"kvlock/bucket", "github.com/nats-io/nats.go"},
	"kvlock/fence":  {"github.com/nats-io/nats.go"},

	"claim/plan": {},
	"claim":      {"claim/plan", "kvlock/bucket", "github.com/nats-io/nats.go"},

	"embedded":          {"github.com/nats-io/nats.go", "github.com/nats-io/nats-server/v2", "golang.org/x/sys"},
	"embedded/natstest": {"embedded", "github.com/nats-io/nats.go", "github.com/nats-io/nats-server/v2"},
	"config":            {"github.com/goccy/go-yaml", "github.com/lmittmann/tint"},

	"worker/proc":   {"golang.org/x/sys"},
	"worker/bench":  {"claim", "claim/plan", "embedded", "kvlock", "kvlock/bucket", "worker", "github.com/nats-io/nats.go"},
	"worker/admin":  {"claim", "kvlock", "kvlock/bucket", "github.com/nats-io/nats.go", "github.com/prometheus/client_golang"},
	"worker/verify": {"claim", "kvlock", "kvlock/bucket", "worker/proc"},
	"worker":        {"claim", "worker/proc", "github.com/nats-io/nats.go", "go.uber.org/fx"},
	"worker/cli": {
		"claim", "config", "embedded", "kvlock", "kvlock/bucket", "worker", "worker/admin", "worker/bench", "worker/proc", "worker/verify",
		"github.com/alecthomas/kong", "github.com/nats-io/nats.go", "go.uber.org/dig", "go.uber.org/fx", "golang.org/x/sys",
	},
}

// Importing kvlock or claim costs next to nothing, fx stays at the edges, and
// every arrow points one way.
func TestImportsGoOneWay(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,Doc,Name", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p struct {
			ImportPath, Doc, Name string
			Imports               []string
		}
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		seen++
		path := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, "tenure"), "/")
		may, ok := allowed[path]
		if !ok {
			t.Errorf("package %s is not in the list of this test", p.ImportPath)
		}
		if p.Doc == "" {
			t.Errorf("package %s has no doc comment", p.ImportPath)
		}
		for _, have := range p.Imports {
			own, inside := strings.CutPrefix(have, "tenure/")
			switch first, _, _ := strings.Cut(have, "/"); {
			case inside && slices.Contains(may, own):
			case !inside && !strings.Contains(first, "."): // standard library
			case !inside && slices.ContainsFunc(may, func(m string) bool { return have == m || strings.HasPrefix(have, m+"/") }):
			default:
				t.Errorf("package %s imports %s, which is not among %v", p.ImportPath, have, may)
			}
		}
	}
	if seen < len(allowed) {
		t.Errorf("packages found = %d, want the %d of the list", seen, len(allowed))
	}
}
