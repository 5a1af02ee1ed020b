package bench_test

import (
	"strings"
	"testing"

	"tenure/worker/bench"
)

// Benchmark measures every part at every site, once: go test -bench Benchmark/acquire.
// A budget that is missed is logged and fails nothing: the machine may be busy.
func Benchmark(b *testing.B) {
	for _, part := range bench.Parts() {
		for _, site := range bench.SitesOf(part) {
			b.Run(part+"/"+site, func(b *testing.B) {
				for b.Loop() {
					err := bench.Run(b.Context(), bench.Config{Only: []string{part}, On: []string{site}, Report: func(r bench.Result) {
						for _, f := range r.Figures {
							b.ReportMetric(f.Value, r.Name+"/"+strings.ReplaceAll(f.Name, "_", "-"))
							if !f.OK() {
								b.Logf("%s: %s = %v, want %v", r.Name, f.Name, f.Value, f.Budget)
							}
						}
					}})
					if err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
