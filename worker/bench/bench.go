package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrName reports a part or a site that there is not.
var ErrName = errors.New("no such name")

// A NameError says which name there is not. It matches [ErrName].
type NameError struct {
	What string // part or site
	Have string
	Want []string
}

func (e *NameError) Error() string {
	return fmt.Sprintf("%s: have %q, want some of %s", e.What, e.Have, strings.Join(e.Want, ","))
}

func (e *NameError) Unwrap() error { return ErrName }

// A part is a group of results that are measured together at one site.
type part struct {
	name  string
	run   func(context.Context, *site) error
	sites []string // where it is measured; nil: everywhere
}

// parts lists all parts in the order in which they are measured. Claims are about
// how many messages and writes there are, so one site is enough; streams about how
// the server finds the messages of a partition, which each kind of storage does in
// its own way.
var parts = []part{
	{"acquire", acquire, nil},
	{"handover", handOvers, nil},
	{"renew", renewals, nil},
	{"fenced", fenced, nil},
	{"claim", claims, []string{fileSite}},
	{"stream", streams, []string{"r1-memory-tcp", fileSite}},
}

// Parts returns the names that [Config] may have in Only.
func Parts() []string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// SitesOf returns where the part is measured if nothing else is asked for.
func SitesOf(part string) []string {
	for _, p := range parts {
		if p.name == part && p.sites != nil {
			return p.sites
		}
	}
	return Sites()
}

// A Config says what is measured, and where.
type Config struct {
	Only []string // parts; none: all
	On   []string // sites; none: all that a part is measured at

	// Server, if not nil, is measured in place of the sites. It makes a new
	// connection at each call.
	Server *Server

	Report   func(Result) // is called for each result, when it is known
	Progress func(string) // says what begins; may be nil
}

// Run measures what c asks for, part by part, each on a server of its own. All of it
// takes about ten minutes; a part at a site takes less than a minute, but for the
// claims and streams, which take two. None may take longer than five.
//
// It returns when all is measured, or with the first error: ctx's cause, what a
// server answered, or a [*NameError] before anything was begun.
func Run(ctx context.Context, c Config) error {
	if err := checkNames("part", c.Only, Parts()); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if err := checkNames("site", c.On, Sites()); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	for _, p := range parts {
		if len(c.Only) > 0 && !slices.Contains(c.Only, p.name) {
			continue
		}
		for _, name := range c.sites(p) {
			if c.Progress != nil {
				c.Progress(p.name + " on " + name)
			}
			if err := c.measure(ctx, p, name); err != nil {
				return fmt.Errorf("bench: %s on %s: %w", p.name, name, err)
			}
		}
	}
	return nil
}

// sites returns where the part is measured.
func (c *Config) sites(p part) []string {
	switch {
	case c.Server != nil:
		return []string{userSite}
	case len(c.On) > 0:
		return c.On
	default:
		return SitesOf(p.name)
	}
}

// longest is how long one part may take at one site: far longer than on a machine that
// has nothing else to do.
const longest = 5 * time.Minute

func (c *Config) measure(ctx context.Context, p part, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("not done after %v", longest))
	defer cancel()
	s, err := openSite(ctx, name, c.Server)
	if err != nil {
		return err
	}
	defer s.close(ctx)
	s.report = c.Report
	return p.run(ctx, s)
}

func checkNames(what string, have, want []string) error {
	for _, name := range have {
		if !slices.Contains(want, name) {
			return &NameError{What: what, Have: name, Want: want}
		}
	}
	return nil
}
