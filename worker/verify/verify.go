package verify

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

// A Config says what is verified, and how.
type Config struct {
	Bucket   *bucket.Bucket
	TTL      time.Duration
	Margin   time.Duration
	Renewals int

	// Command returns a program that calls [Child] with args on the same bucket. Its
	// standard input and output are set by Run.
	Command func(args ...string) *exec.Cmd

	Only      []string      // names of checks; none: all
	Processes int           // under load
	Load      time.Duration // how long that lasts

	Report   func(Check)  // is called for each check, when it is done
	Progress func(string) // says what begins
}

// A Check is what one check did and found.
type Check struct {
	Name    string
	Did     string // in words
	Saw     string
	Figures Figures
	Wrong   []string // promises that were broken, in words
}

// OK reports whether every promise held.
func (c Check) OK() bool { return len(c.Wrong) == 0 }

// Figures are what a check has measured, in the order in which they are shown.
type Figures []Figure

// A Figure is one number. Names ending in _ms are milliseconds.
type Figure struct {
	Name  string
	Value int64
}

// ErrName reports a check that there is not.
var ErrName = errors.New("no such check")

var checks = []struct {
	name string
	run  func(context.Context, *site) (Check, error)
}{
	{"crash", crash},
	{"pause", pause},
	{"load", load},
	{"worker", worker},
}

// Names returns the names of the checks.
func Names() []string {
	var names []string
	for _, c := range checks {
		names = append(names, c.name)
	}
	return names
}

// Run makes the checks that c asks for, one after the other, and removes from the
// bucket what it has put there. That a promise was broken is no error.
//
// It blocks for about one TTL for each of crash, pause and worker, and for as long as
// the load lasts. It returns ctx's cause, what a process failed with (a [*ChildError]),
// an error that matches [ErrName] before anything was begun, or that something could
// not be removed.
func Run(ctx context.Context, c Config) error {
	for _, name := range c.Only {
		if !slices.Contains(Names(), name) {
			return fmt.Errorf("%w: have %q, want some of %s", ErrName, name, strings.Join(Names(), ","))
		}
	}
	locker, err := kvlock.New(ctx, c.Bucket.JetStream(), kvlock.WithBucket(c.Bucket),
		kvlock.WithTTL(c.TTL), kvlock.WithMargin(c.Margin), kvlock.WithRenewals(c.Renewals), kvlock.WithOwner("verify"))
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.TTL)
		defer cancel()
		_ = locker.Close(ctx) // it holds nothing
	}()
	run := strings.ToLower(bucket.Nonce()[:8])
	for _, check := range checks {
		if len(c.Only) > 0 && !slices.Contains(c.Only, check.name) {
			continue
		}
		c.Progress(check.name)
		if err := c.check(ctx, locker, "tenure-verify/"+run+"/"+check.name, check.run); err != nil {
			return fmt.Errorf("verify: %s: %w", check.name, err)
		}
	}
	return nil
}

// longest is how long a check may take beside the TTLs it waits for, on a machine that
// has other things to do.
const longest = time.Minute

func (c *Config) check(ctx context.Context, locker *kvlock.Locker, name string, run func(context.Context, *site) (Check, error)) error {
	limit := 4*c.TTL + c.Load + longest
	checking, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done after %v", limit))
	defer cancel()
	s, err := newSite(c, locker, name)
	if err != nil {
		return err
	}
	result, err := run(checking, s)
	s.close()
	if err == nil {
		result.Name = name[strings.LastIndexByte(name, '/')+1:]
		result.Wrong = append(s.witness.wrong, result.Wrong...)
		c.Report(result)
	}
	return errors.Join(err, s.clean(context.WithoutCancel(ctx)))
}
