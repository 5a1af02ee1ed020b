package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"tenure/claim"
	"tenure/config"
	"tenure/kvlock/bucket"
)

type statusCommand struct {
	JSON  bool `name:"json" help:"Print one JSON object."`
	Watch bool `name:"watch" help:"Print it again whenever it changes, until a signal comes."`

	Group string `arg:"" name:"group" help:"Name of the group."`
}

func (*statusCommand) Help() string {
	return `Prints who has which partition of a group, and what its workers do. It may be late and proves nothing.

Example:

    tenure status orders --watch`
}

func (c *statusCommand) Run(ctx context.Context, r *run) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	nc, js, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	b, err := r.openBucket(ctx, js, bucket.AttachOnly())
	if err != nil {
		return err
	}
	if c.Watch {
		return c.watch(ctx, r, b)
	}
	status, err := claim.ReadStatus(ctx, b, c.Group)
	if err != nil {
		return err
	}
	return c.print(r.Out, &status)
}

// watch prints the status whenever it has changed, until a signal comes.
func (c *statusCommand) watch(ctx context.Context, r *run, b *bucket.Bucket) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	redraw := !c.JSON && config.IsTerminal(r.Out)
	var failed error
	err := claim.WatchStatus(ctx, b, c.Group, func(s claim.Status) {
		var page bytes.Buffer
		if failed = c.print(&page, &s); failed == nil {
			text := page.Bytes()
			if redraw { // over the last page, line by line: to clear it first would flicker
				text = append([]byte("\x1b[H"), bytes.ReplaceAll(text, []byte("\n"), []byte("\x1b[K\n"))...)
				text = append(text, "\x1b[J"...)
			}
			_, failed = r.Out.Write(text)
		}
		if failed != nil {
			cancel(failed)
		}
	})
	switch ended, _ := errors.AsType[*signalError](context.Cause(ctx)); {
	case failed != nil:
		return failed
	case ended != nil:
		return nil // the only way to end it
	default:
		return err
	}
}

func (c *statusCommand) print(w io.Writer, s *claim.Status) error {
	if c.JSON {
		return printJSON(w, s)
	}
	return printStatus(w, s)
}

func printStatus(w io.Writer, s *claim.Status) error {
	_, err := fmt.Fprintf(w, "group %s: %d partitions, %d unassigned, %d moving, plan %d\n\n",
		shown(s.Group), len(s.Partitions), s.Unassigned, s.Plan.Moving, s.Plan.Revision)
	if err != nil {
		return err
	}
	workers := [][]string{{"WORKER", "PARTITIONS", "EPOCH", ""}}
	for _, worker := range s.Workers {
		role := ""
		switch {
		case worker.Draining:
			role = "draining"
		case worker.Cordoned:
			role = "cordoned"
		case worker.Leader:
			role = "leader"
		}
		workers = append(workers, []string{shown(worker.ID), strconv.Itoa(worker.Partitions), strconv.FormatUint(worker.Epoch, 10), role})
	}
	if err := printTable(w, workers...); err != nil {
		return err
	}
	partitions := [][]string{{""}, {"PARTITION", "STATE", "WORKER", "TOKEN", "ATTEMPTS"}}
	for _, p := range s.Partitions {
		worker, token := "-", "-"
		if p.Worker != "" {
			worker, token = shown(p.Worker), strconv.FormatUint(p.Token, 10)
		}
		partitions = append(partitions, []string{shown(p.Name), p.State, worker, token, strconv.Itoa(p.Attempts)})
	}
	return printTable(w, partitions...)
}
