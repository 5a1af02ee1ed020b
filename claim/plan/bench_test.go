package plan_test

import (
	"testing"

	"tenure/claim/plan"
)

// The budget is 150 ms for each of these at 100,000 × 1,000.
func BenchmarkMake(b *testing.B) {
	steady := settled(100_000, 1000)

	cold := steady
	cold.Partitions = numbered(make([]int, 100_000)...)
	for i := range cold.Partitions {
		cold.Partitions[i].Owner = plan.None
	}

	join := steady
	join.Workers = append(join.Workers[:1000:1000], plan.Worker{ID: "newcomer"})

	half := settled(100_000, 500)
	half.Workers = steady.Workers

	one := steady
	one.Partitions = numbered(make([]int, 100_000)...)

	weighted := one
	weighted.Partitions = numbered(make([]int, 100_000)...)
	for i := range weighted.Partitions {
		weighted.Partitions[i].Weight = 1 + i%10
	}
	weighted.Workers = append(weighted.Workers[:0:0], steady.Workers...)
	for i := range weighted.Workers {
		weighted.Workers[i].Weight = 1 + i%7
	}

	for _, bb := range []struct {
		name string
		in   plan.Input
	}{
		{"steady", steady},
		{"cold", cold},
		{"join", join},
		{"500 join 500", half},
		{"999 join 1", one},
		{"weights", weighted},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			moves := 0
			for b.Loop() {
				moves = plan.Make(bb.in).Moves
			}
			b.ReportMetric(float64(moves), "moves")
		})
	}
}

func BenchmarkStored(b *testing.B) {
	in := settled(100_000, 1000)
	p := plan.NewPlan(in, plan.Make(in))
	p.Leader = "worker0"
	data, err := p.Marshal()
	if err != nil {
		b.Fatal(err)
	}
	b.Run("marshal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := p.Marshal(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(data)), "bytes")
	})
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := plan.Parse(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}
