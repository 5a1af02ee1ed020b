package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"tenure/config"
	"tenure/worker/bench"
)

type benchCommand struct {
	JSON     bool     `name:"json" help:"Print one JSON object, at the end."`
	Only     []string `name:"only" placeholder:"PART,…" help:"What to measure; everything if not given."`
	On       []string `name:"on" placeholder:"SITE,…" help:"Which embedded servers to measure on; all of them if not given."`
	Replicas int      `name:"replicas" default:"1" placeholder:"N" help:"Replicas of the bucket that is made on the servers of --server."`
}

func (*benchCommand) Help() string {
	return fmt.Sprintf(`Measures locks, claims and stream tasks, each beside the raw JetStream operation in the same run, and compares the ratio with its
budget. Parts: %s. A server is started in this process for each: %s.
With --server it is the servers that are named there, with a bucket of its own that is deleted at the end.

All of it takes about ten minutes. A busy machine makes figures of time worse, ratios less so. Budgets that are missed
do not change the exit code.

Example:

    tenure bench --only acquire,handover --on r1-file-tcp`, strings.Join(bench.Parts(), ", "), strings.Join(bench.Sites(), ", "))
}

func (c *benchCommand) Run(ctx context.Context, r *run) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	var results []bench.Result
	cfg := bench.Config{Only: c.Only, On: c.On, Report: func(result bench.Result) { results = append(results, result) }}
	progress := r.newProgress()
	defer progress.stop()
	cfg.Progress = func(what string) { progress.step("measuring " + what) }
	switch {
	case r.cfg.Server != "" && len(c.On) > 0:
		return wrongFlag("on", strings.Join(c.On, ","), "no --on together with a server that is named")
	case r.cfg.Server != "":
		cfg.Server = &bench.Server{Connect: r.connect, Replicas: c.Replicas}
	case r.cfg.Login() != "":
		return fmt.Errorf("%w: %s is of no use without a server: name one with --server", config.ErrInvalid, r.cfg.Login())
	case c.Replicas != 1:
		return wrongFlag("replicas", strconv.Itoa(c.Replicas), "1 without a server that is named; r3-file-tcp has 3")
	}
	err := bench.Run(ctx, cfg)
	progress.stop()
	if wrong, ok := errors.AsType[*bench.NameError](err); ok {
		flag := map[string]string{"part": "only", "site": "on"}[wrong.What]
		return wrongFlag(flag, strconv.Quote(wrong.Have), "some of "+strings.Join(wrong.Want, ","))
	}
	if len(results) == 0 {
		return err
	}
	return errors.Join(c.print(r.Out, results), err) // what was measured before an error is good
}

// print writes the results as a table, or as JSON.
func (c *benchCommand) print(out io.Writer, results []bench.Result) error {
	if c.JSON {
		return printJSON(out, map[string]any{"results": results})
	}
	rows := [][]string{{"NAME", "SERVER", "", "FIGURES"}}
	for _, result := range results {
		verdict := "ok"
		if !result.OK() {
			verdict = "missed"
		}
		rows = append(rows, []string{result.Name, result.Server, verdict, figures(result)})
	}
	return printTable(out, rows...)
}

// figures returns the figures of a result, those that have a budget with it.
func figures(result bench.Result) string {
	var all []string
	for _, f := range result.Figures {
		text := f.String()
		if f.Limited {
			sign := "≤"
			if f.AtLeast {
				sign = "≥"
			}
			text += fmt.Sprintf(" (%s %v)", sign, f.Budget)
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}
