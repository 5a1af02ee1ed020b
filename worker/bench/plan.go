package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tenure/claim/plan"
)

// planner measures the planner at 100,000 partitions and 1,000 workers: the first
// plan, a join and a leave. The slowest counts.
func planner(ctx context.Context, s *site) error {
	const partitions, workers = 100_000, 1000
	in := plan.Input{Group: "g", Partitions: make([]plan.Partition, partitions)}
	for i := range in.Partitions {
		in.Partitions[i] = plan.Partition{Name: strconv.Itoa(i), Owner: plan.None, Target: plan.None}
	}
	for i := range workers {
		in.Workers = append(in.Workers, plan.Worker{ID: "w" + strconv.Itoa(i), Epoch: uint64(i + 1)})
	}
	cold, first := timed(in)

	settled := in
	settled.Partitions = slices.Clone(in.Partitions)
	for i, w := range first.Assign {
		settled.Partitions[i].Owner = w
	}
	join := settled
	join.Workers = append(slices.Clone(in.Workers), plan.Worker{ID: "newcomer", Epoch: workers + 1})
	joined, afterJoin := timed(join)

	leave := settled
	leave.Workers = in.Workers[:workers-1]
	leave.Partitions = slices.Clone(settled.Partitions)
	orphans := 0
	for i, p := range leave.Partitions {
		if p.Owner == workers-1 {
			leave.Partitions[i].Owner = plan.None
			orphans++
		}
	}
	left, afterLeave := timed(leave)

	moved := 0
	for i, w := range afterLeave.Assign {
		if w != settled.Partitions[i].Owner {
			moved++
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if want := partitions / (workers + 1); afterJoin.Moves != want || moved != orphans {
		return fmt.Errorf("plan: moves on join and leave = %d and %d, want %d and %d", afterJoin.Moves, moved, want, orphans)
	}
	s.report(Result{Name: "plan-100000x1000", Server: noSite, Figures: []Figure{
		atMost("ms", millis(max(cold, joined, left)), 150), plain("cold_ms", millis(cold)), plain("join_ms", millis(joined)), plain("leave_ms", millis(left)),
		plain("moves_join", float64(afterJoin.Moves)), plain("moves_leave", float64(moved)),
	}})
	return nil
}

// timed makes a plan five times and returns the median of the time.
func timed(in plan.Input) (time.Duration, plan.Result) {
	var took samples
	var r plan.Result
	for range 5 {
		began := time.Now()
		r = plan.Make(in)
		took = append(took, time.Since(began))
	}
	return took.at(50), r
}
