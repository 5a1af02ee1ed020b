package cli_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// Every figure stands beside the raw operation of the same run, under the names and
// fields that scripts rely on.
func TestBenchPrintsRatiosBesideTheRawOperation(t *testing.T) {
	code, out, stderr := tenure(t, "bench", "--json", "--only", "acquire", "--on", "inproc-memory,r1-file-tcp")
	if code != 0 {
		t.Fatalf("code = %d, want 0; stderr %s", code, stderr)
	}
	if n := strings.Count(stderr, `"msg":"measuring acquire on `); n != 2 || strings.Count(stderr, "\n") != 2 {
		t.Errorf("stderr = %q, want a line for each of two servers: it is no terminal", stderr)
	}
	var got struct {
		Results []struct {
			Name   string   `json:"name"`
			Server string   `json:"server"`
			P50    *float64 `json:"p50_us"`
			P99    *float64 `json:"p99_us"`
			RawP50 *float64 `json:"raw_p50_us"`
			RawP99 *float64 `json:"raw_p99_us"`
			Ratio  *float64 `json:"ratio"`
			Budget *float64 `json:"budget"`
			OK     *bool    `json:"ok"`
		} `json:"results"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("output %q: %v", out, err)
	}
	budgets := map[string]float64{"acquire": 1.25, "acquire-again": 2.5, "cycle": 1.25}
	raws := map[string]float64{"acquire": 1, "acquire-again": 1, "cycle": 2}
	var names []string
	for _, r := range got.Results {
		names = append(names, r.Name+"@"+r.Server)
		if r.P50 == nil || r.P99 == nil || r.RawP50 == nil || r.RawP99 == nil || r.Ratio == nil || r.Budget == nil || r.OK == nil {
			t.Errorf("%s lacks a field: %s", r.Name, out)
			continue
		}
		if *r.P50 <= 0 || *r.P99 < *r.P50 || *r.RawP50 <= 0 || *r.RawP99 < *r.RawP50 {
			t.Errorf("%s: p50 %v, p99 %v, raw p50 %v, raw p99 %v, want positive and in order", r.Name, *r.P50, *r.P99, *r.RawP50, *r.RawP99)
		}
		if want := *r.P50 / *r.RawP50 / raws[r.Name]; *r.Ratio < want*0.98 || *r.Ratio > want*1.02 {
			t.Errorf("%s: ratio = %v, want %v", r.Name, *r.Ratio, want)
		}
		if *r.Budget != budgets[r.Name] {
			t.Errorf("%s: budget = %v, want %v", r.Name, *r.Budget, budgets[r.Name])
		}
		if *r.OK != (*r.Ratio <= *r.Budget) && *r.Ratio != *r.Budget {
			t.Errorf("%s: ok = %v with ratio %v and budget %v", r.Name, *r.OK, *r.Ratio, *r.Budget)
		}
	}
	want := []string{
		"acquire@inproc-memory", "acquire-again@inproc-memory", "cycle@inproc-memory",
		"acquire@r1-file-tcp", "acquire-again@r1-file-tcp", "cycle@r1-file-tcp",
	}
	if !slices.Equal(names, want) {
		t.Errorf("results = %q, want %q", names, want)
	}
}

// The user's own NATS is measured in a bucket that is gone afterwards.
func TestBenchLeavesNothingOnTheServer(t *testing.T) {
	_, url := startServer(t)
	code, out, stderr := tenure(t, "bench", "--server", url, "--only", "acquire")
	if code != 0 || !strings.Contains(out, "acquire-again  user") {
		t.Fatalf("bench = %d, %q, want 0 and results of %q; stderr %s", code, out, "user", stderr)
	}
	js := connect(t, url)
	for name := range js.StreamNames(t.Context()).Name() {
		if strings.Contains(name, "bench") {
			t.Errorf("stream %q is left", name)
		}
	}
}

func TestBenchRefusesWhatItCannotMeasure(t *testing.T) {
	for _, args := range [][]string{
		{"--only", "streams"},
		{"--only", "acquire,fly"},
		{"--on", "moon"},
		{"--replicas", "3"},
		{"--server", "nats://127.0.0.1:1", "--on", "r1-file-tcp"},
		{"--user", "me"},
	} {
		if code, _, stderr := tenure(t, append([]string{"bench"}, args...)...); code != 2 {
			t.Errorf("bench %q = %d, want 2; stderr %s", args, code, stderr)
		}
	}
}
