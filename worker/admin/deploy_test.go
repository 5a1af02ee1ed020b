package admin_test

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"tenure/embedded/natstest"
)

const deploy = "../../docs/deploy/"

// exported are the samples of a pool that leads its group, as /metrics has them: by name
// the values of each label.
func exported(t *testing.T) map[string]map[string][]string {
	t.Helper()
	all := make(map[string]map[string][]string)
	natstest.Bubble(t, func(t *testing.T) {
		s := &site{t, natstest.Server(t)}
		p := s.pool("a", nil)
		p.metrics.Locks()
		p.show()
		time.Sleep(2 * time.Second)
		sample := regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})?$`)
		label := regexp.MustCompile(`([a-z]+)="([^"]*)"`)
		for name := range p.scrape(t) {
			m := sample.FindStringSubmatch(name)
			if all[m[1]] == nil {
				all[m[1]] = map[string][]string{"instance": nil, "job": nil} // whoever scrapes adds them
			}
			for _, l := range label.FindAllStringSubmatch(m[2], -1) {
				all[m[1]][l[1]] = append(all[m[1]][l[1]], l[2])
			}
		}
	})
	return all
}

var (
	selector = regexp.MustCompile(`(tenure_[a-z_]+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)(=~|!=|=)"([^"]*)"`)
	grouping = regexp.MustCompile(`by \(([^)]*)\)`)
)

// check finds what an expression uses and nobody exports.
func check(t *testing.T, where, expr string, have map[string]map[string][]string) {
	t.Helper()
	found := selector.FindAllStringSubmatch(expr, -1)
	if len(found) == 0 {
		t.Errorf("%s: %q has no metric", where, expr)
	}
	for _, m := range found {
		labels, ok := have[m[1]]
		if !ok {
			t.Errorf("%s: %s is not exported", where, m[1])
			continue
		}
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			values, ok := labels[l[1]]
			if !ok {
				t.Errorf("%s: %s has no label %s", where, m[1], l[1])
			}
			for value := range strings.SplitSeq(l[3], "|") {
				if value != "$group" && !slices.Contains(values, value) {
					t.Errorf("%s: %s is never %q in %s, only %q", where, l[1], value, m[1], values)
				}
			}
		}
		for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
			for label := range strings.SplitSeq(g[1], ", ") {
				if _, ok := labels[label]; !ok && len(found) == 1 {
					t.Errorf("%s: %s has no label %s to sum by", where, m[1], label)
				}
			}
		}
	}
	if strings.Count(expr, "(") != strings.Count(expr, ")") || strings.Count(expr, "{") != strings.Count(expr, "}") {
		t.Errorf("%s: %q does not close what it opens", where, expr)
	}
}

func TestDashboardShowsWhatIsExported(t *testing.T) {
	have := exported(t)
	text, err := os.ReadFile(deploy + "grafana/tenure.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, RefID, LegendFormat string }
		}
		Templating struct {
			List []struct {
				Name  string
				Query json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	used := make(map[string]bool)
	for i, p := range board.Panels {
		refs := make(map[string]bool)
		for _, target := range p.Targets {
			check(t, p.Title, target.Expr, have)
			for _, m := range selector.FindAllStringSubmatch(target.Expr, -1) {
				used[m[1]] = true
			}
			for _, l := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !strings.Contains(target.Expr, l[1]) && l[1] != "instance" {
					t.Errorf("%s: the legend's %s is summed away", p.Title, l[1])
				}
			}
			if refs[target.RefID] {
				t.Errorf("%s: two queries are called %s", p.Title, target.RefID)
			}
			refs[target.RefID] = true
		}
		for _, q := range board.Panels[:i] {
			a, b := p.GridPos, q.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H || p.ID == q.ID {
				t.Errorf("panel %s lies on %s", p.Title, q.Title)
			}
		}
	}
	for _, v := range board.Templating.List {
		if m := selector.FindStringSubmatch(string(v.Query)); m != nil && have[m[1]] == nil {
			t.Errorf("variable %s: %s is not exported", v.Name, m[1])
		}
	}
	if len(used) < 15 {
		t.Errorf("metrics on the dashboard = %q, want more", slices.Sorted(maps.Keys(used)))
	}
}

// And what to do about each alert is said.
func TestAlertsAreAboutWhatIsExported(t *testing.T) {
	have := exported(t)
	text, err := os.ReadFile(deploy + "prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr, For string
				Labels           map[string]string
				Annotations      map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Groups) != 1 || len(file.Groups[0].Rules) < 10 {
		t.Fatalf("rules = %+v, want one group with some", file)
	}
	for _, rule := range file.Groups[0].Rules {
		check(t, rule.Alert, rule.Expr, have)
		if rule.For != "" {
			if _, err := time.ParseDuration(rule.For); err != nil {
				t.Errorf("%s: for: %v", rule.Alert, err)
			}
		}
		if s := rule.Labels["severity"]; s != "warning" && s != "critical" {
			t.Errorf("%s: severity = %q, want warning or critical", rule.Alert, s)
		}
		for _, l := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(rule.Annotations["summary"], -1) {
			byLabel := grouping.FindStringSubmatch(rule.Expr)
			if byLabel != nil && !strings.Contains(byLabel[1], l[1]) {
				t.Errorf("%s: the summary's %s is summed away", rule.Alert, l[1])
			}
		}
		if !strings.Contains(string(docs), "| `"+rule.Alert+"` |") {
			t.Errorf("%s: docs/operations.md does not say what to do", rule.Alert)
		}
	}
}
