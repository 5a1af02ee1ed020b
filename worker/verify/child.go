package verify

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"tenure/claim"
	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

// Roles of children.
const (
	roleHold = "hold"
	roleLoad = "load"
	roleWork = "work"
)

// Orders that a child reads from its input.
const (
	orderPut    = "put "
	orderLate   = "late"
	orderDelete = "delete"
)

// How often a child looks at its trust, and from what change on it tells.
const (
	lookEvery = 10 * time.Millisecond
	tellFrom  = 50 * time.Millisecond
)

// A Member is the NATS side of a child.
type Member struct {
	Bucket   *bucket.Bucket
	TTL      time.Duration
	Margin   time.Duration
	Renewals int
	In       io.Reader // orders; its end is the order to end
	Out      io.Writer // the pipe that all children write to
}

// Child does the part of a child: args are those that [Config.Command] was given. It
// returns when In has ended, or with an error.
func (m *Member) Child(ctx context.Context, args []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return (&child{Member: m}).run(ctx, cancel, args)
}

type child struct {
	*Member
	who string

	mu sync.Mutex // one line after the other
}

// say tells the witness. If that is gone, so is the reason to go on, whatever is held.
func (c *child) say(e event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.Who = c.who
	if err := e.write(c.Out); err != nil {
		os.Exit(1)
	}
}

func (c *child) run(ctx context.Context, cancel context.CancelFunc, args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("verify: have %d arguments, want a role, a name, a thing and a number", len(args))
	}
	role, thing := args[0], args[2]
	c.who = args[1]
	n, err := strconv.Atoi(args[3])
	if err != nil {
		return fmt.Errorf("verify: number: %w", err)
	}
	orders := make(chan string)
	go func() { // ends with the input, and that at the latest with the process
		defer cancel()
		defer close(orders)
		for lines := bufio.NewScanner(c.In); lines.Scan(); {
			orders <- lines.Text()
		}
	}()
	switch role {
	case roleHold:
		return c.hold(ctx, thing, orders)
	case roleLoad:
		return c.load(ctx, thing, time.Duration(n)*time.Millisecond)
	case roleWork:
		return c.work(ctx, thing, n)
	}
	return fmt.Errorf("verify: no role %q", role)
}

func (c *child) locker(ctx context.Context) (*kvlock.Locker, error) {
	return kvlock.New(ctx, c.Bucket.JetStream(),
		kvlock.WithBucket(c.Bucket), kvlock.WithTTL(c.TTL), kvlock.WithMargin(c.Margin), kvlock.WithRenewals(c.Renewals),
		kvlock.WithOwner("verify/"+c.who), kvlock.WithNote("tenure verify"),
		kvlock.WithTrace(&kvlock.Trace{Waiting: func(name string) { c.say(event{What: waiting, Thing: name}) }}))
}

// hold takes a lock, says how long it trusts in it, and obeys orders.
func (c *child) hold(ctx context.Context, name string, orders <-chan string) error {
	locker, err := c.locker(ctx)
	if err != nil {
		return err
	}
	defer c.leave(ctx, locker.Close)
	lock, err := locker.Lock(ctx, name)
	if err != nil {
		return end(ctx, err)
	}
	c.say(event{What: gained, Thing: name, Token: lock.Token()})
	trust := c.reporter(name, lock.Token, lock.Remaining)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for over := false; ; {
		select {
		case <-look.C:
			trust()
			if !over && lock.Err() != nil {
				over = true
				c.say(event{What: ended, Thing: name, Token: lock.Token(), Text: lock.Err().Error()})
			}
		case order, ok := <-orders:
			if !ok {
				if !over {
					c.say(event{What: ended, Thing: name, Token: lock.Token()})
				}
				return nil
			}
			c.say(c.obey(ctx, lock, order))
		}
	}
}

// obey carries an order out and returns what became of it.
func (c *child) obey(ctx context.Context, lock *kvlock.Lock, order string) event {
	// A write that is doubtful is repeated; it need not be for longer than this.
	ctx, cancel := context.WithTimeout(ctx, c.TTL)
	defer cancel()
	name := lock.Name()
	answer := event{What: wrote, Thing: name, Token: lock.Token()}
	var err error
	text, put := strings.CutPrefix(order, orderPut)
	switch {
	case put:
		err = lock.Put(ctx, name, []byte(text))
	case order == orderDelete:
		err = lock.Delete(ctx, name)
	case order == orderLate:
		return c.writeLate(ctx, lock)
	default:
		err = fmt.Errorf("verify: no order %q", order)
	}
	if err != nil {
		answer.Text = err.Error()
	}
	return answer
}

// writeLate is what a process does that was stopped in the middle of its work and goes
// on: it writes. Once through its hold, which is to know that it has ended, and once
// as if it had asked the hold before it was stopped.
func (c *child) writeLate(ctx context.Context, lock *kvlock.Lock) event {
	answer := event{What: late, Thing: lock.Name(), Token: lock.Token()}
	if err := lock.Err(); err != nil {
		answer.Text = err.Error()
	}
	key, err := bucket.EncodeName(lock.Name())
	if err == nil {
		_, err = c.Bucket.Write(ctx, bucket.Write{Key: "data." + key, Value: []byte("late"), Fence: "lock." + key, Last: lock.Revision()})
	}
	answer.Forced = !errors.Is(err, bucket.ErrConflict)
	answer.Stored = lock.Put(ctx, lock.Name(), []byte("late")) == nil
	return answer
}

// load takes the lock again and again, and counts in the bucket.
func (c *child) load(ctx context.Context, name string, lasts time.Duration) error {
	locker, err := c.locker(ctx)
	if err != nil {
		return err
	}
	defer c.leave(ctx, locker.Close)
	n := 0
	for stop := time.Now().Add(lasts); time.Now().Before(stop); {
		asked := time.Now()
		err := locker.Do(ctx, name, func(ctx context.Context, lock *kvlock.Lock) error {
			c.say(event{What: gained, Thing: name, Token: lock.Token(), Waited: time.Since(asked)})
			defer func() { c.say(event{What: ended, Thing: name, Token: lock.Token()}) }()
			err := increment(ctx, locker, lock)
			if err == nil {
				n++
			}
			return err
		})
		if loss, ok := errors.AsType[*kvlock.LostError](err); ok {
			c.say(event{What: lost, Thing: name, Token: loss.Token, Text: loss.Error(), Fault: loss.Reason != kvlock.Expired})
		} else if err != nil {
			return end(ctx, err)
		}
	}
	c.say(event{What: done, Thing: name, N: n})
	return nil
}

// increment adds one to the number that is stored under the name of the lock, in a
// way that loses some if two do it at the same time.
func increment(ctx context.Context, locker *kvlock.Locker, lock *kvlock.Lock) error {
	count, err := readCount(ctx, locker, lock.Name())
	if err != nil {
		return err
	}
	return lock.Put(ctx, lock.Name(), []byte(strconv.Itoa(count+1)))
}

func readCount(ctx context.Context, locker *kvlock.Locker, name string) (int, error) {
	value, _, err := locker.Data(ctx, name)
	if errors.Is(err, kvlock.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(value))
}

// work is one worker of a group of n partitions.
func (c *child) work(ctx context.Context, group string, n int) error {
	worker, err := claim.New(ctx, c.Bucket.JetStream(), group,
		claim.WithBucket(c.Bucket), claim.WithTTL(c.TTL), claim.WithMargin(c.Margin), claim.WithHeartbeats(c.Renewals),
		claim.WithID(c.who), claim.WithPartitions(claim.Numbered(n)...), claim.WithDrainTimeout(c.TTL))
	if err != nil {
		return err
	}
	return worker.Run(ctx, func(ctx context.Context, p *claim.Partition) error {
		thing := group + " " + p.Name()
		c.say(event{What: gained, Thing: thing, Token: p.Token()})
		defer func() { c.say(event{What: ended, Thing: thing, Token: p.Token()}) }()
		trust := c.reporter(thing, p.Token, p.Remaining)
		look := time.NewTicker(lookEvery)
		defer look.Stop()
		for {
			select {
			case <-look.C:
				trust()
			case <-p.Draining():
				return nil
			case <-ctx.Done():
				return nil
			}
		}
	})
}

// reporter returns a func that says until when a hold is trusted, if that has changed.
func (c *child) reporter(thing string, token func() uint64, remaining func() time.Duration) func() {
	var said time.Time
	return func() {
		now := time.Now() // first: a process may be held up here, and must not claim more trust than it has
		left := remaining()
		until := now.Add(left)
		if left > 0 && until.Sub(said) >= tellFrom {
			said = until
			c.say(event{What: trusts, Thing: thing, Token: token(), Until: until.UnixNano()})
		}
	}
}

// leave gives back what is held, also after the end of ctx.
func (c *child) leave(ctx context.Context, giveBack func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.TTL)
	defer cancel()
	_ = giveBack(ctx) // it expires
}

// end returns err, or nil if that is because of the order to end.
func end(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
