package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// lateness is by how much a hold may outlive its TTL: the server looks four times a
// second, and the first in line a little after that.
const lateness = 500 * time.Millisecond

// stand starts a holder, and a second process that stands in line behind it. It
// returns the token of the holder when both are so far and the hold has been renewed.
func (s *site) stand(ctx context.Context) (token uint64, err error) {
	if err := s.start(roleHold, "holder", 0); err != nil {
		return 0, err
	}
	has, err := s.witness.await(ctx, "a process has the lock", is(gained, "holder", s.name))
	if err != nil {
		return 0, err
	}
	if err := s.start(roleHold, "second", 0); err != nil {
		return 0, err
	}
	if _, err := s.witness.await(ctx, "another stands in line", is(waiting, "second", s.name)); err != nil {
		return 0, err
	}
	renewed := s.TTL / time.Duration(s.Renewals) / 2
	_, err = s.witness.await(ctx, "the hold is renewed", func(e event) bool {
		return is(trusts, "holder", s.name)(e) && e.at().Sub(has.at()) > renewed
	})
	if err != nil {
		return 0, err
	}
	// In the middle between two renewals, so that none is under way.
	return has.Token, rest(ctx, renewed)
}

func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// takeOver waits until the second process has the lock, judges how long that took, and
// returns the token. When it is not there in time at all, that is a broken promise and
// no error.
func (s *site) takeOver(ctx context.Context, since time.Time, old uint64) (Figures, error) {
	limit := s.TTL + lateness
	waiting, cancel := context.WithTimeout(ctx, 2*s.TTL+10*time.Second)
	defer cancel()
	e, err := s.witness.await(waiting, "the second process has the lock", is(gained, "second", s.name))
	if waiting.Err() != nil && ctx.Err() == nil {
		s.witness.accuse("nobody has the lock %v after its holder went, want within TTL + %v = %v", ms(time.Since(since)), lateness, limit)
		return Figures{{"old_token", int64(old)}, {"overlaps", s.overlaps()}}, errNobody
	}
	if err != nil {
		return nil, err
	}
	took := e.at().Sub(since)
	if took > limit {
		s.witness.accuse("the lock was taken over after %v, want within TTL + %v = %v", ms(took), lateness, limit)
	}
	return Figures{
		{"takeover_ms", took.Milliseconds()},
		{"limit_ms", limit.Milliseconds()},
		{"old_token", int64(old)},
		{"new_token", int64(e.Token)},
		{"overlaps", s.overlaps()},
	}, nil
}

// errNobody says that there is nothing more to look at.
var errNobody = errors.New("nobody took over")

func (s *site) overlaps() int64 {
	s.witness.mu.Lock()
	defer s.witness.mu.Unlock()
	return int64(s.witness.overlaps)
}

// crash kills the holder of a lock.
func crash(ctx context.Context, s *site) (Check, error) {
	c := Check{Did: fmt.Sprintf("killed (SIGKILL) the holder of a lock with TTL %v while another process stood in line", s.TTL)}
	old, err := s.stand(ctx)
	if err != nil {
		return c, err
	}
	c.Figures, err = s.takeOver(ctx, s.kill("holder"), old)
	if errors.Is(err, errNobody) {
		c.Saw = "nobody got the lock"
		return c, nil
	}
	c.Saw = fmt.Sprintf("the other process got it after %v, under a token that is larger by %d", c.Figures.ms("takeover_ms"), c.Figures.get("new_token")-c.Figures.get("old_token"))
	return c, err
}

// pause stops the holder of a lock until another one has it, and lets it go on.
func pause(ctx context.Context, s *site) (Check, error) {
	c := Check{Did: fmt.Sprintf("stopped (SIGSTOP) the holder of a lock with TTL %v until another process had it and had written, then let it go on and write", s.TTL)}
	old, err := s.stand(ctx)
	if err != nil {
		return c, err
	}
	if err := s.ask(ctx, "holder", orderPut+"early"); err != nil {
		return c, err
	}
	c.Figures, err = s.takeOver(ctx, s.stop("holder"), old)
	if errors.Is(err, errNobody) {
		c.Saw = "nobody got the lock"
		return c, nil
	}
	if err != nil {
		return c, err
	}
	const mark = "by the second"
	if err := s.ask(ctx, "second", orderPut+mark); err != nil {
		return c, err
	}
	answer, err := s.resume(ctx)
	if err != nil {
		return c, err
	}
	refused := int64(2)
	if answer.Text == "" {
		s.witness.accuse("the process that was stopped still believes that it has the lock")
	}
	if answer.Forced {
		refused--
		s.witness.accuse("a write that was fenced with the old token was stored")
	}
	if answer.Stored {
		refused--
		s.witness.accuse("a write of the hold that has ended was stored")
	}
	value, _, err := s.locker.Data(ctx, s.name)
	if err != nil {
		return c, err
	}
	if string(value) != mark {
		s.witness.accuse("what the second process wrote was overwritten by %q", value)
	}
	if err := s.locker.Verify(ctx, s.name, uint64(c.Figures.get("new_token"))); err != nil {
		s.witness.accuse("the second process has lost the lock to the first: %v", err)
	}
	c.Figures = append(c.Figures.without("overlaps"), Figure{"refused", refused}, Figure{"overlaps", s.overlaps()})
	c.Saw = fmt.Sprintf("the other process got it after %v; %d of 2 late writes of the first were refused, which was told: %s", c.Figures.ms("takeover_ms"), refused, answer.Text)
	return c, s.ask(ctx, "second", orderDelete)
}

// resume lets the holder go on. The first that it reads then is the order to write.
func (s *site) resume(ctx context.Context) (event, error) {
	if err := s.order("holder", orderLate); err != nil {
		return event{}, err
	}
	if err := s.children["holder"].Signal(syscall.SIGCONT); err != nil {
		return event{}, err
	}
	s.witness.returns("holder")
	return s.witness.await(ctx, "the first process writes", is(late, "holder", s.name))
}

// load has many processes take one lock.
func load(ctx context.Context, s *site) (Check, error) {
	c := Check{Did: fmt.Sprintf("had %d processes take one lock again and again for %v, each time to add 1 to a number in the bucket", s.Processes, s.Load)}
	var names []string
	for i := range s.Processes {
		names = append(names, "p"+strconv.Itoa(i+1))
		if err := s.start(roleLoad, names[i], int(s.Load/time.Millisecond)); err != nil {
			return c, err
		}
	}
	sections, least := 0, 0
	for i, who := range names {
		e, err := s.witness.await(ctx, who+" is done", is(done, who, s.name))
		if err != nil {
			return c, err
		}
		sections += e.N
		if least = min(least, e.N); i == 0 {
			least = e.N
		}
	}
	count, err := readCount(ctx, s.locker, s.name)
	if err != nil {
		return c, err
	}
	var waited []time.Duration
	losses := int64(0)
	for _, e := range s.witness.since(time.Time{}) {
		switch {
		case e.What == gained:
			waited = append(waited, e.Waited)
		case e.What == lost:
			losses++
			if e.Fault {
				s.witness.accuse("%s lost the lock though nobody stopped it: %s", e.Who, e.Text)
			}
		}
	}
	// Whoever loses the lock does not know whether it has added.
	if int64(count) < int64(sections) || int64(count) > int64(sections)+losses {
		s.witness.accuse("%d sections added 1 each, and the number is %d", sections, count)
	}
	slices.Sort(waited)
	overlaps := s.overlaps()
	c.Figures = Figures{
		{"processes", int64(s.Processes)},
		{"sections", int64(sections)},
		{"count", int64(count)},
		{"least_of_a_process", int64(least)},
		{"per_second", int64(float64(sections) / s.Load.Seconds())},
		{"lost", losses},
		{"overlaps", overlaps},
	}
	if len(waited) > 0 {
		c.Figures = append(c.Figures, Figure{"wait_p50_ms", waited[len(waited)/2].Milliseconds()}, Figure{"wait_max_ms", waited[len(waited)-1].Milliseconds()})
	}
	c.Saw = fmt.Sprintf("%d sections, %d of them while another one was inside; the number is %d", sections, overlaps, count)
	return c, nil
}

func (f Figures) get(name string) int64 {
	for _, figure := range f {
		if figure.Name == name {
			return figure.Value
		}
	}
	return 0
}

func (f Figures) ms(name string) time.Duration { return time.Duration(f.get(name)) * time.Millisecond }

func (f Figures) without(name string) Figures {
	return slices.DeleteFunc(slices.Clone(f), func(figure Figure) bool { return figure.Name == name })
}
