package verify

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// The group that worker looks at. Each of three workers has four partitions, and each
// of the two that are left then six.
const (
	groupPartitions = 12
	groupWorkers    = 3
)

// calm is how long nothing has happened when everything is settled.
const calm = time.Second

// takeOverLimit is by how much the claims of a worker that died may outlive its TTL.
const takeOverLimit = time.Second

// worker kills one of the workers of a group.
func worker(ctx context.Context, s *site) (Check, error) {
	c := Check{Did: fmt.Sprintf("killed (SIGKILL) one of %d workers with TTL %v that share %d partitions", groupWorkers, s.TTL, groupPartitions)}
	names := []string{"a", "b", "c"}
	for _, who := range names {
		if err := s.start(roleWork, who, groupPartitions); err != nil {
			return c, err
		}
	}
	if err := s.settle(ctx, names, calm); err != nil {
		return c, err
	}
	victim := names[groupWorkers-1]
	theirs := s.witness.has(victim)
	if err := rest(ctx, s.TTL/time.Duration(s.Renewals)/2); err != nil {
		return c, err
	}
	killed := s.kill(victim)

	limit := s.TTL + takeOverLimit
	waiting, cancel := context.WithTimeout(ctx, 2*limit+10*time.Second)
	defer cancel()
	err := s.settle(waiting, names[:groupWorkers-1], calm)
	if waiting.Err() != nil && ctx.Err() == nil {
		s.witness.accuse("the partitions of a worker that died are not all taken over after %v, want within TTL + %v = %v", ms(time.Since(killed)), takeOverLimit, limit)
	} else if err != nil {
		return c, err
	}
	moves, disturbed, last := make(map[string]int), make(map[string]bool), time.Duration(0)
	for _, e := range s.witness.since(killed) {
		switch ours := slices.Contains(theirs, e.Thing); {
		case !ours && (e.What == gained || e.What == ended):
			disturbed[e.Thing] = true
		case ours && e.What == gained:
			moves[e.Thing]++
			last = max(last, e.at().Sub(killed))
		}
	}
	again := 0
	for thing, n := range moves {
		if n > 1 {
			again++
			s.witness.accuse("partition %q moved %d times, want once", thing, n)
		}
	}
	for thing := range disturbed {
		s.witness.accuse("partition %q moved, or its handler ended, though its worker lives", thing)
	}
	if last > limit {
		s.witness.accuse("the last partition runs elsewhere after %v, want within TTL + %v = %v", ms(last), takeOverLimit, limit)
	}
	c.Figures = Figures{
		{"takeover_ms", last.Milliseconds()},
		{"limit_ms", limit.Milliseconds()},
		{"moved", int64(len(moves))},
		{"moved_again", int64(again)},
		{"stayed", int64(groupPartitions - len(theirs) - len(disturbed))},
		{"disturbed", int64(len(disturbed))},
		{"overlaps", s.overlaps()},
	}
	c.Saw = fmt.Sprintf("%d of its %d partitions run elsewhere after %v, %d of them moved more than once; of the other %d, %d were disturbed",
		len(moves), len(theirs), ms(last), again, groupPartitions-len(theirs), len(disturbed))
	return c, nil
}

// settle waits until the workers have the same number of partitions, all together, and
// nothing has happened for some time.
func (s *site) settle(ctx context.Context, workers []string, quiet time.Duration) error {
	settled := func() bool {
		for _, who := range workers {
			if len(s.witness.has(who)) != groupPartitions/len(workers) {
				return false
			}
		}
		return len(s.witness.since(time.Now().Add(-quiet))) == 0
	}
	for !settled() {
		if err := rest(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("waiting for: everybody has %d partitions: %w", groupPartitions/len(workers), err)
		}
		if err := s.witness.failure(); err != nil {
			return err
		}
	}
	return nil
}
