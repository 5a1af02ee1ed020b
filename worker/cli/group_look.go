package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"tenure/claim"
)

type policyCommand struct {
	JSON           bool           `name:"json" help:"Print one JSON object."`
	Zones          *string        `name:"zones" placeholder:"WHAT" help:"What zones mean: ignore, spread or stay."`
	MovesPerMinute *int           `name:"moves-per-minute" placeholder:"N" help:"Moves for balance within a minute; 0 for no limit."`
	Hysteresis     *int           `name:"hysteresis" placeholder:"N" help:"Difference of loads up to which nothing is moved for balance."`
	Rollout        *bool          `name:"rollout" negatable:"" help:"Older builds are about to be replaced: prefer the newest, and move nothing for balance."`
	CoolDown       *time.Duration `name:"cool-down" placeholder:"DURATION" help:"How long a partition stays after a move of it has failed."`

	Group string `arg:"" name:"group" help:"Name of the group."`
}

func (*policyCommand) Help() string {
	return `Prints how the partitions of a group are moved, after changing what is given. What is not given stays as it is.

Example:

    tenure group policy orders --moves-per-minute 20 --zones spread`
}

func (c *policyCommand) Run(ctx context.Context, r *run) error {
	return r.admin(ctx, c.Group, func(ctx context.Context, a *claim.Admin) error {
		ctx, cancel := context.WithTimeout(ctx, adminTimeout)
		defer cancel()
		err := a.SetPolicy(ctx, func(p *claim.Policy) {
			if c.Zones != nil {
				p.Zones = strings.TrimPrefix(*c.Zones, "ignore")
			}
			set(&p.MovesPerMinute, c.MovesPerMinute)
			set(&p.Hysteresis, c.Hysteresis)
			set(&p.Rollout, c.Rollout)
			set(&p.CoolDown, c.CoolDown)
		})
		if err != nil {
			return err
		}
		p, err := a.Policy(ctx)
		if err != nil {
			return err
		}
		zones := p.Zones
		if zones == "" {
			zones = "ignore"
		}
		if c.JSON {
			return printJSON(r.Out, map[string]any{
				"group": c.Group, "zones": zones, "moves_per_minute": p.MovesPerMinute,
				"hysteresis": p.Hysteresis, "rollout": p.Rollout, "cool_down": p.CoolDown.String(),
			})
		}
		return printTable(r.Out,
			[]string{"zones", zones}, []string{"moves per minute", strconv.Itoa(p.MovesPerMinute)}, []string{"hysteresis", strconv.Itoa(p.Hysteresis)},
			[]string{"rollout", strconv.FormatBool(p.Rollout)}, []string{"cool-down", p.CoolDown.String()})
	})
}

// set changes a value if another is given.
func set[T any](value, given *T) {
	if given != nil {
		*value = *given
	}
}

type explainCommand struct {
	JSON bool `name:"json" help:"Print one JSON object."`

	Group     string `arg:"" name:"group" help:"Name of the group."`
	Partition string `arg:"" name:"partition" help:"Name of the partition."`
}

func (*explainCommand) Help() string {
	return `Prints who has a partition, since when, under which token and why, why no other worker has it, and who had it before.

Example:

    tenure group explain orders 17`
}

func (c *explainCommand) Run(ctx context.Context, r *run) error {
	return r.admin(ctx, c.Group, func(ctx context.Context, a *claim.Admin) error {
		x, err := a.Explain(ctx, c.Partition)
		if err != nil {
			return hinted(err)
		}
		if c.JSON {
			return printJSON(r.Out, x)
		}
		return printExplanation(r, &x)
	})
}

func printExplanation(r *run, x *claim.Explanation) error {
	head := fmt.Sprintf("partition %s of group %s: %s", shown(x.Name), shown(x.Group), x.State)
	if x.Worker != "" {
		head += fmt.Sprintf(" at %s since %s, token %d", shown(x.Worker), at(x.Since), x.Token)
	}
	rows := [][]string{{head}, {"why: " + x.Why}}
	switch {
	case x.Next == "":
		rows = append(rows, []string{"planned: nowhere; " + x.Plan})
	default:
		rows = append(rows, []string{"planned: at " + shown(x.Next) + "; " + x.Plan})
	}
	if x.Pin != "" {
		rows = append(rows, []string{"pin: " + shown(x.Pin)})
	}
	if x.WaitsFor != "" {
		rows = append(rows, []string{"waits for: " + shown(x.WaitsFor)})
	}
	if x.Attempts > 0 {
		rows = append(rows, []string{"failed in a row: " + strconv.Itoa(x.Attempts)})
	}
	if err := printTable(r.Out, rows...); err != nil {
		return err
	}
	rows = [][]string{{""}, {"NOT AT", "WHY"}}
	for _, other := range x.Others {
		rows = append(rows, []string{shown(other.Worker), other.Why})
	}
	if err := printTable(r.Out, rows...); err != nil {
		return err
	}
	rows = [][]string{{""}, {"BEFORE", "TOKEN", "SINCE", "UNTIL", "WHY", "END"}}
	for _, p := range x.History {
		rows = append(rows, []string{shown(p.Worker), strconv.FormatUint(p.Token, 10), at(p.Since), at(p.Until), p.Why, p.End})
	}
	return printTable(r.Out, rows...)
}

// at returns a time as it stands in a table.
func at(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.RFC3339)
}

type planCommand struct {
	JSON   bool     `name:"json" help:"Print one JSON object."`
	Add    []string `name:"add" sep:"none" placeholder:"ID,…" help:"Workers that come."`
	Remove []string `name:"remove" sep:"none" placeholder:"ID,…" help:"Workers that go."`

	Group string `arg:"" name:"group" help:"Name of the group."`
}

func (*planCommand) Help() string {
	return `Prints which partitions would move if workers came or went, and moves nothing.

Example:

    tenure group plan orders --add a,b --remove c`
}

func (c *planCommand) Run(ctx context.Context, r *run) error {
	return r.admin(ctx, c.Group, func(ctx context.Context, a *claim.Admin) error {
		p, err := a.Plan(ctx, claim.WhatIf{Add: names(c.Add), Remove: names(c.Remove)})
		if err != nil {
			return hinted(err)
		}
		if c.JSON {
			return printJSON(r.Out, p)
		}
		rows := [][]string{{fmt.Sprintf("group %s: %d moves", shown(p.Group), len(p.Moves))}, {""}}
		if err := printTable(r.Out, rows...); err != nil {
			return err
		}
		rows = [][]string{{"WORKER", "NOW", "THEN"}}
		for _, w := range p.Workers {
			rows = append(rows, []string{shown(w.ID), strconv.Itoa(w.Before), strconv.Itoa(w.After)})
		}
		if err := printTable(r.Out, rows...); err != nil {
			return err
		}
		rows = [][]string{{""}, {"PARTITION", "FROM", "TO", "WHY"}}
		for _, m := range p.Moves {
			from, to := "-", "-"
			if m.From != "" {
				from = shown(m.From)
			}
			if m.To != "" {
				to = shown(m.To)
			}
			rows = append(rows, []string{shown(m.Partition), from, to, m.Why})
		}
		return printTable(r.Out, rows...)
	})
}
