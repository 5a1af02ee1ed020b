package claim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"tenure/claim/plan"
	"tenure/kvlock/bucket"
)

// An Admin changes what operators say of a group. It is no worker and needs none:
// what it says is stored and holds for workers that come later. Its methods may be
// called concurrently, also with those of other Admins: each change is made to the
// newest settings, and none is lost.
//
// A method returns when its change is stored, or, given [Wait], when it has been
// carried out. Asking again for what is so already is no error and writes nothing.
// Errors are [*AdminError]s that match [ErrPartition], [ErrWorker], [ErrCapacity]
// or [ErrSettings], or match [ErrGroup] (the group does not exist), [ErrBucket] or
// [ErrPermission], or are the cause of ctx; after the latter the change may have
// been stored.
type Admin struct {
	bucket *bucket.Bucket
	group  string
	g      string // group as part of a key
}

// NewAdmin returns an Admin of an existing group. It blocks until the settings
// were read or ctx is done. A group that does not exist is [ErrGroup].
func NewAdmin(ctx context.Context, b *bucket.Bucket, group string) (*Admin, error) {
	g, err := bucket.EncodeName(group)
	if err != nil {
		return nil, fmt.Errorf("claim: group %w", err)
	}
	a := &Admin{bucket: b, group: group, g: g}
	if _, _, err := a.settings(ctx); err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	return a, nil
}

// A VerbOption changes what a method of [Admin] does.
type VerbOption func(*verb)

type verb struct {
	wait, absent, afterDrain bool
	parents                  map[string][]string
}

// Wait makes a method block until what it asks for has been carried out. It may
// never be: give the ctx a deadline.
func Wait() VerbOption { return func(v *verb) { v.wait = true } }

// Absent allows a method to name a worker that is not there now.
func Absent() VerbOption { return func(v *verb) { v.absent = true } }

func verbOf(opts []VerbOption) (v verb) {
	for _, opt := range opts {
		opt(&v)
	}
	return v
}

// Pin has the partitions run on the worker and nowhere else while it is there, has
// room and is not drained: also if it is cordoned. Each has one pin, the last. The
// worker has to be there, unless [Absent] is given, and to have room for all that
// is pinned to it.
func (a *Admin) Pin(ctx context.Context, worker string, partitions []string, opts ...VerbOption) error {
	v := verbOf(opts)
	return a.do(ctx, "pin", v, func(s *settings, r *reader) error {
		if err := a.present(r, v, worker); err != nil {
			return err
		}
		if s.Pins == nil {
			s.Pins = make(map[string]string)
		}
		for _, name := range partitions {
			s.Pins[name] = worker
			delete(s.Moves, name)
		}
		pinned := 0
		for name, w := range s.Pins {
			if w == worker && s.has(name) {
				pinned++
			}
		}
		return a.room(r, worker, pinned)
	}, partitions, a.at(worker, partitions))
}

// Unpin takes the pins of the partitions away. They stay where they are until
// something else moves them.
func (a *Admin) Unpin(ctx context.Context, partitions []string, opts ...VerbOption) error {
	return a.do(ctx, "unpin", verbOf(opts), func(s *settings, _ *reader) error {
		for _, name := range partitions {
			delete(s.Pins, name)
		}
		return nil
	}, partitions, nil)
}

// Move has the partition go to the worker, once. It then stays there as long as
// nothing else moves it; where loads would differ too much another one goes the
// other way. The order is void when the partition has changed hands, or is given
// another. It outranks a pin until then. The worker has to be there, to have room
// for a partition at all, and not to be drained.
func (a *Admin) Move(ctx context.Context, partition, worker string, opts ...VerbOption) error {
	v := verbOf(opts)
	return a.do(ctx, "move", v, func(s *settings, r *reader) error {
		if err := a.present(r, verb{}, worker); err != nil {
			return err
		}
		if contains(s.Drained, worker) {
			return &AdminError{Group: a.group, What: "worker " + strconv.Quote(worker), Have: "it is drained", Want: "one that takes partitions; uncordon it", Err: ErrWorker}
		}
		pinned := 1
		for name, w := range s.Pins {
			if w == worker && s.has(name) && name != partition {
				pinned++
			}
		}
		if err := a.room(r, worker, pinned); err != nil {
			return err
		}
		if c := r.claims[partition]; c.Owner == worker && r.alive(c) {
			delete(s.Moves, partition)
			return nil // it is there
		}
		if s.Moves == nil {
			s.Moves = make(map[string]oneMove)
		}
		if s.Moves[partition].Worker != worker {
			s.Moves[partition] = oneMove{Worker: worker}
		}
		return nil
	}, []string{partition}, a.at(worker, []string{partition}))
}

// Pause has the partitions run nowhere, whatever comes and goes, until [Admin.Resume].
// Their handlers drain and, if they have to be cancelled, find [ErrPaused].
func (a *Admin) Pause(ctx context.Context, partitions []string, opts ...VerbOption) error {
	return a.do(ctx, "pause", verbOf(opts), func(s *settings, _ *reader) error {
		s.Paused = insert(s.Paused, partitions...)
		return nil
	}, partitions, func(r *reader) bool {
		return !slices.ContainsFunc(partitions, func(name string) bool { return r.alive(r.claims[name]) })
	})
}

// Resume ends the pause of the partitions, and their quarantine; their failures are
// forgotten then.
func (a *Admin) Resume(ctx context.Context, partitions []string, opts ...VerbOption) error {
	err := a.do(ctx, "resume", verb{}, func(s *settings, _ *reader) error {
		s.Paused = remove(s.Paused, partitions...)
		return nil
	}, partitions, nil)
	if err != nil {
		return err
	}
	for _, name := range partitions {
		if err = a.release(ctx, name); err != nil {
			break
		}
	}
	if err == nil && verbOf(opts).wait {
		err = a.await(ctx, func(r *reader) bool {
			return !slices.ContainsFunc(partitions, func(name string) bool { return !r.alive(r.claims[name]) })
		})
	}
	if err != nil {
		return fmt.Errorf("claim: resume: %w", err)
	}
	return nil
}

// release ends the quarantine of a partition, by CAS on the claim of nobody. Whoever
// is faster has ended it too.
func (a *Admin) release(ctx context.Context, partition string) error {
	enc, err := bucket.EncodeName(partition)
	if err != nil {
		return err
	}
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		e, err := a.bucket.Get(try, claimKey(a.g, enc))
		if err == nil {
			old, bad := parseRecord(e)
			if bad != nil || !old.Quarantined {
				cancel()
				return nil // there is nothing to end
			}
			next := old
			next.Quarantined, next.Attempts, next.Error, next.Avoid = false, 0, "", ""
			next.Nonce, next.Prev, next.By = bucket.Nonce(), old.Nonce, ""
			next.Check, next.Batch = old.check(e.Revision), false
			_, err = a.bucket.Write(try, bucket.Write{Key: e.Key, Last: e.Revision, Value: encode(next)})
		}
		cancel()
		switch {
		case err == nil, errors.Is(err, bucket.ErrNotFound):
			return nil
		case permanent(err), errors.Is(err, bucket.ErrFull):
			return err
		}
		if cause := pause(ctx, 2*retryPause); cause != nil {
			return fmt.Errorf("%w (%w)", cause, err)
		}
	}
}

// Cordon has the workers keep what they have and get nothing new but pins.
func (a *Admin) Cordon(ctx context.Context, workers []string, opts ...VerbOption) error {
	v := verbOf(opts)
	return a.do(ctx, "cordon", v, func(s *settings, r *reader) error {
		s.Cordoned = insert(s.Cordoned, workers...)
		return a.present(r, v, workers...)
	}, nil, nil)
}

// Drain has the workers give everything away that others can take, and get
// nothing. They stay in the group, and drained when they come back, until
// [Admin.Uncordon].
func (a *Admin) Drain(ctx context.Context, workers []string, opts ...VerbOption) error {
	v := verbOf(opts)
	return a.do(ctx, "drain", v, func(s *settings, r *reader) error {
		s.Drained = insert(s.Drained, workers...)
		return a.present(r, v, workers...)
	}, nil, func(r *reader) bool {
		for _, name := range r.names {
			if c := r.claims[name]; r.alive(c) && slices.Contains(workers, c.Owner) {
				return false
			}
		}
		return true
	})
}

// Uncordon ends [Admin.Cordon] and [Admin.Drain] of the workers. A worker that is
// neither there nor cordoned nor drained is [ErrWorker].
func (a *Admin) Uncordon(ctx context.Context, workers []string, opts ...VerbOption) error {
	return a.do(ctx, "uncordon", verbOf(opts), func(s *settings, r *reader) error {
		for _, worker := range workers {
			if !contains(s.Cordoned, worker) && !contains(s.Drained, worker) {
				if err := a.present(r, verb{}, worker); err != nil {
					return err
				}
			}
		}
		s.Cordoned, s.Drained = remove(s.Cordoned, workers...), remove(s.Drained, workers...)
		return nil
	}, nil, nil)
}

// Weigh sets how much the partitions weigh beside others, 1 to 64; 1 is the
// default.
func (a *Admin) Weigh(ctx context.Context, weight int, partitions []string) error {
	return a.do(ctx, "weigh", verb{}, func(s *settings, _ *reader) error {
		if s.Weights == nil {
			s.Weights = make(map[string]int)
		}
		for _, name := range partitions {
			if s.Weights[name] = weight; weight == 1 {
				delete(s.Weights, name)
			}
		}
		return nil
	}, partitions, nil)
}

// SetPolicy sets how partitions are moved; change leaves what it does not touch as
// others have set it.
func (a *Admin) SetPolicy(ctx context.Context, change func(*Policy)) error {
	return a.do(ctx, "policy", verb{}, func(s *settings, _ *reader) error {
		p := s.policy()
		change(&p)
		if s.Policy = &p; p == (Policy{}) {
			s.Policy = nil
		}
		return nil
	}, nil, nil)
}

// Policy returns how partitions are moved.
func (a *Admin) Policy(ctx context.Context) (Policy, error) {
	_, s, err := a.settings(ctx)
	if err != nil {
		return Policy{}, fmt.Errorf("claim: %w", err)
	}
	return s.policy(), nil
}

// present returns an error unless all workers are there.
func (a *Admin) present(r *reader, v verb, workers ...string) error {
	for _, worker := range workers {
		if _, err := bucket.EncodeName(worker); err != nil {
			return fmt.Errorf("worker %w", err)
		}
		if r.members[worker] == nil && !v.absent {
			return &AdminError{Group: a.group, What: "worker", Have: fmt.Sprintf("%q", slices.Sorted(maps.Keys(r.members))), Want: strconv.Quote(worker), Err: ErrWorker}
		}
	}
	return nil
}

// room returns an error if the worker takes fewer partitions than are to go there.
func (a *Admin) room(r *reader, worker string, want int) error {
	if m := r.members[worker]; m != nil && m.Capacity > 0 && want > m.Capacity {
		return &AdminError{Group: a.group, What: "capacity of worker " + strconv.Quote(worker), Have: strconv.Itoa(m.Capacity), Want: strconv.Itoa(want), Err: ErrCapacity}
	}
	return nil
}

// at reports whether the worker has the partitions.
func (a *Admin) at(worker string, partitions []string) func(*reader) bool {
	return func(r *reader) bool {
		return !slices.ContainsFunc(partitions, func(name string) bool {
			c := r.claims[name]
			return c.Owner != worker || !r.alive(c)
		})
	}
}

// do makes a change that concerns the given partitions and waits for it, if that
// is asked for.
func (a *Admin) do(ctx context.Context, what string, v verb, edit func(*settings, *reader) error, partitions []string, done func(*reader) bool) error {
	err := a.change(ctx, func(s *settings, r *reader) error {
		for _, name := range partitions {
			if !s.has(name) {
				return &AdminError{Group: a.group, What: "partition", Have: describe(*s), Want: strconv.Quote(name), Err: ErrPartition}
			}
		}
		return edit(s, r)
	})
	if err == nil && v.wait && done != nil {
		err = a.await(ctx, done)
	}
	if err != nil {
		return fmt.Errorf("claim: %s: %w", what, err)
	}
	return nil
}

// settings reads the newest settings.
func (a *Admin) settings(ctx context.Context) (bucket.Entry, settings, error) {
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		e, err := a.bucket.Get(try, groupKey(a.g))
		cancel()
		switch {
		case err == nil && e.Marker, errors.Is(err, bucket.ErrNotFound):
			return e, settings{}, fmt.Errorf("group %q: %w: it does not exist", a.group, ErrGroup)
		case err == nil:
			s, err := parseSettings(e)
			if err != nil {
				err = fmt.Errorf("group %q: %w", a.group, err)
			}
			return e, s, err
		case permanent(err):
			return e, settings{}, err
		}
		if cause := pause(ctx, 2*retryPause); cause != nil {
			return e, settings{}, fmt.Errorf("group %q: %w (%w)", a.group, cause, err)
		}
	}
}

// change edits the newest settings until the edit is stored. The other records of
// the group, which edit is given too, may be older.
//
// A write whose answer was lost is recognized by its nonce, or as what the record
// found was made from; so an edit is never made twice over somebody else's.
func (a *Admin) change(ctx context.Context, edit func(*settings, *reader) error) error {
	read, cancel := context.WithTimeout(ctx, 10*time.Second)
	r, err := readGroup(read, a.bucket, a.group, a.g)
	cancel()
	if err != nil {
		return err
	}
	tried := make(map[string]bool)
	for {
		e, have, err := a.settings(ctx)
		if err != nil {
			return err
		}
		if tried[have.Nonce] || tried[have.Prev] {
			return nil
		}
		want := have.clone()
		if err := edit(&want, r); err != nil {
			return err
		}
		if !want.same(have) {
			want.Layout = 0
		}
		maps.DeleteFunc(want.Moves, func(name string, m oneMove) bool {
			c := r.claims[name]
			return m.Since != 0 && (!want.has(name) || c.token(c.revision) > m.Since)
		})
		if err := want.check(); err != nil {
			return err
		}
		if string(want.encode()) == string(have.encode()) {
			return nil
		}
		want.Nonce, want.Prev = bucket.Nonce(), have.Nonce
		try, cancel := context.WithTimeout(ctx, time.Second)
		_, err = a.bucket.Write(try, bucket.Write{Key: e.Key, Last: e.Revision, Value: want.encode()})
		cancel()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, bucket.ErrConflict):
			if cause := pause(ctx, retryPause/10); cause != nil {
				return fmt.Errorf("%w (%w)", cause, err)
			}
			continue
		case errors.Is(err, bucket.ErrDoubt):
			tried[want.Nonce] = true
		case permanent(err), errors.Is(err, bucket.ErrFull):
			return err
		}
		if cause := pause(ctx, 2*retryPause); cause != nil {
			return fmt.Errorf("%w (%w)", cause, err)
		}
	}
}

// await blocks until done holds for what the bucket says.
func (a *Admin) await(ctx context.Context, done func(*reader) bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	carriedOut := errors.New("carried out")
	r, complete := newReader(a.group), false
	look := func() {
		if complete && done(r) {
			cancel(carriedOut)
		}
	}
	err := a.bucket.Watch(ctx, func(e bucket.Entry) { r.take(e); look() }, func() { complete = true; look() }, filters(a.g)...)
	if errors.Is(context.Cause(ctx), carriedOut) {
		return nil
	}
	return fmt.Errorf("it is stored, and not carried out yet: %w", err)
}

// state returns what a plan would be made from.
func (r *reader) state() *state {
	s := &state{group: r.group, settings: r.set, names: r.names, members: r.members, claims: make(map[string]owner, len(r.claims)), present: r.followed()}
	for name, c := range r.claims {
		s.claims[name] = ownerOf(c.record, c.revision)
	}
	awaited := make(map[string]bool) // only the leader knows; its plan says so
	if s.present != nil {
		for i, why := range s.present.Why {
			if w := s.present.Assign[i]; w >= 0 && why == plan.Awaited {
				awaited[s.present.Workers[w].ID] = true
			}
		}
	}
	s.absent = func(worker string) bool { return awaited[worker] }
	return s
}
