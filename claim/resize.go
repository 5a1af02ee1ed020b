package claim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// AfterDrain makes [Admin.Resize] of numbered partitions change over key by key: a
// partition starts in the new layout only when the handler has returned of every
// partition of the old one whose keys may go there, taking a key's partition to be
// its hash modulo their number. Partitions that stay are drained for it too.
func AfterDrain() VerbOption { return func(v *verb) { v.afterDrain = true } }

// AfterParents makes [Admin.Resize] start each of the given partitions of the new
// layout only when its parents, partitions of the old one, have been drained. A
// parent that stays is drained once for it, and starts again.
func AfterParents(parents map[string][]string) VerbOption {
	return func(v *verb) { v.parents = parents }
}

// Resize sets the partitions of the group, 1 to 1,000,000 different names; see
// [Numbered]. Partitions that stay are not touched, unless [AfterDrain] or
// [AfterParents] says so. Those that are new start at once, or after their parents.
//
// Those that are no longer named drain; if their handlers have to be cancelled
// they find [ErrRemoved]. What was said of them (pins, pauses, weights) is
// forgotten. Their checkpoints stay in the bucket, and a later resize that names
// them again goes on from these.
//
// [Wait] waits until no removed partition has an owner and everything has been
// drained that others wait for.
func (a *Admin) Resize(ctx context.Context, partitions []string, opts ...VerbOption) error {
	v := verbOf(opts)
	var gone []string
	edit := func(s *settings, r *reader) error {
		before := s.clone()
		s.setPartitions(slices.Clone(partitions))
		if err := s.checkPartitions(); err != nil {
			return err
		}
		if s.same(before) {
			return nil
		}
		names := make(map[string]bool, len(partitions))
		for _, name := range partitions {
			names[name] = true
		}
		gone = slices.DeleteFunc(slices.Clone(before.partitions()), func(name string) bool { return names[name] })
		there := func(name string) bool { return names[name] }
		maps.DeleteFunc(s.Pins, func(name, _ string) bool { return !there(name) })
		maps.DeleteFunc(s.Moves, func(name string, _ oneMove) bool { return !there(name) })
		maps.DeleteFunc(s.Weights, func(name string, _ int) bool { return !there(name) })
		s.Paused = slices.DeleteFunc(s.Paused, func(name string) bool { return !there(name) })
		st := r.state()
		s.Gates = slices.DeleteFunc(s.Gates, st.passed)
		return a.gate(s, before, v)
	}
	done := func(r *reader) bool {
		st := r.state()
		return !slices.ContainsFunc(gone, func(name string) bool { return r.alive(r.claims[name]) }) &&
			!slices.ContainsFunc(r.set.Gates, func(g gate) bool { return !st.passed(g) })
	}
	return a.do(ctx, "resize", v, edit, nil, done)
}

// gate adds to s what partitions have to wait for.
func (a *Admin) gate(s *settings, before settings, v verb) error {
	if v.afterDrain {
		if s.Count == 0 || before.Count == 0 {
			return &AdminError{Group: a.group, What: "resize after drain", Have: describe(before) + " to " + describe(*s), Want: "numbered ones; name parents instead", Err: ErrSettings}
		}
		s.Gates = append(s.Gates, gate{Count: before.Count, To: s.Count})
	}
	if len(v.parents) == 0 {
		return nil
	}
	for child, parents := range v.parents {
		if !s.has(child) {
			return &AdminError{Group: a.group, What: "partition", Have: describe(*s), Want: strconv.Quote(child), Err: ErrPartition}
		}
		for _, parent := range parents {
			if !before.has(parent) {
				return &AdminError{Group: a.group, What: fmt.Sprintf("parent of %q", child), Have: describe(before), Want: strconv.Quote(parent), Err: ErrPartition}
			}
		}
	}
	s.Gates = append(s.Gates, gate{Parents: maps.Clone(v.parents)})
	return nil
}
