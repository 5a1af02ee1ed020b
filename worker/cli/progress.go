package cli

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"tenure/config"
)

// A progress tells people what a command that takes long is doing: on a terminal one
// line that is written over, with the time that has passed, and elsewhere a line of
// log for each step.
type progress struct {
	log  *slog.Logger
	out  io.Writer // nil if it is no terminal
	stop func()

	mu    sync.Mutex
	what  string
	begun time.Time
}

// newProgress returns a progress. Call stop before anything else is printed at the end.
func (r *run) newProgress() *progress {
	p := &progress{log: r.log, stop: func() {}}
	if !config.IsTerminal(r.Err) {
		return p
	}
	p.out = r.Err
	tick := time.NewTicker(100 * time.Millisecond)
	over := make(chan struct{})
	var drawing sync.WaitGroup
	drawing.Go(func() {
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.draw()
			case <-over:
				return
			}
		}
	})
	p.stop = sync.OnceFunc(func() {
		close(over)
		drawing.Wait()
		p.clear()
	})
	return p
}

// step says what begins.
func (p *progress) step(what string) {
	p.mu.Lock()
	p.what, p.begun = what, time.Now()
	p.mu.Unlock()
	if p.out == nil {
		p.log.Info(what)
	}
}

func (p *progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.what != "" {
		_, _ = fmt.Fprintf(p.out, "\r\x1b[K%s … %.1fs", p.what, time.Since(p.begun).Seconds()) // a courtesy
	}
}

// clear takes the line away, so that something else may stand there.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out != nil && p.what != "" {
		_, _ = io.WriteString(p.out, "\r\x1b[K")
		p.what = ""
	}
}
