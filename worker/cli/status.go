package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"time"

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

// watchEvery is how often a status that is watched is read.
const watchEvery = time.Second

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
	page, err := c.page(ctx, b)
	if err != nil {
		return err
	}
	if _, err := r.Out.Write(page); err != nil {
		return err
	}
	if !c.Watch {
		return nil
	}
	return c.watch(ctx, r, b, page)
}

// watch prints the status whenever it has changed, until ctx is done.
func (c *statusCommand) watch(ctx context.Context, r *run, b *bucket.Bucket, last []byte) error {
	clear := ""
	if !c.JSON && config.IsTerminal(r.Out) {
		clear = "\x1b[H\x1b[2J"
	}
	again := time.NewTicker(watchEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil // the only way to end it
		case <-again.C:
		}
		page, err := c.page(ctx, b)
		if err != nil {
			if ctx.Err() == nil {
				r.log.WarnContext(ctx, "status not read", slog.Any("err", err))
			}
			continue
		}
		if bytes.Equal(page, last) {
			continue
		}
		last = page
		if _, err := r.Out.Write(append([]byte(clear), page...)); err != nil {
			return err
		}
	}
}

// page returns what is printed.
func (c *statusCommand) page(ctx context.Context, b *bucket.Bucket) ([]byte, error) {
	status, err := claim.ReadStatus(ctx, b, c.Group)
	if err != nil {
		return nil, err
	}
	var page bytes.Buffer
	if c.JSON {
		err = printJSON(&page, status)
	} else {
		err = printStatus(&page, &status)
	}
	return page.Bytes(), err
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
