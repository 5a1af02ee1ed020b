package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"tenure/config"
	"tenure/embedded"
	"tenure/kvlock/bucket"
	"tenure/worker/verify"
)

type verifyCommand struct {
	*config.Lease

	JSON      bool          `name:"json" help:"Print one JSON object, at the end."`
	Only      []string      `name:"only" placeholder:"CHECK,…" help:"Which checks to make; all of them if not given."`
	Processes int           `name:"processes" default:"16" placeholder:"N" help:"Processes that take one lock in the load check."`
	Load      time.Duration `name:"load" default:"5s" placeholder:"DURATION" help:"How long the load check lasts."`
}

func (*verifyCommand) Help() string {
	return fmt.Sprintf(`Proves the promises on the NATS that is named, with processes of this program that are killed, stopped and set against
each other. Checks: %s.

  crash   kills the holder of a lock: another one has it within TTL + 0.5 s, under a larger token
  pause   stops the holder until another one has the lock, and lets it go on: its late writes are refused
  load    has many processes take one lock: never two at a time, and the tokens rise
  worker  kills one of three workers: its partitions move once, and no other one is disturbed

It prints what it did and saw, and ends with 0 only if every promise held. Everything is kept under names of its own
and removed at the end. The bucket has to be there.

Without a server it runs one in this process, which says something about tenure and this machine, and nothing about
your NATS.

Example:

    tenure verify --server nats://nats.example.com --only crash,pause`, strings.Join(verify.Names(), ", "))
}

// errBroken reports broken promises, which have been printed.
var errBroken = errors.New("not every promise held; see the output")

func (c *verifyCommand) Run(ctx context.Context, r *run) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	if err := c.check(); err != nil {
		return err
	}
	if r.cfg.Server == "" {
		server, err := r.tryServer(ctx, "verify")
		if err != nil {
			return err
		}
		defer server.Stop()
		r.cfg.Server = config.Servers(server.URL())
	}
	nc, js, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	b, err := r.openBucket(ctx, js, bucket.AttachOnly())
	if err != nil {
		return err
	}
	if err := b.AwaitQuarantine(ctx); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	progress := r.newProgress()
	defer progress.stop()
	var results []verify.Check
	err = verify.Run(ctx, verify.Config{
		Bucket: b, TTL: c.TTL, Margin: c.LeaseMargin(), Renewals: c.Renewals,
		Command: func(args ...string) *exec.Cmd {
			cmd := exec.Command(program, append([]string{"verify-child"}, args...)...)
			// In the environment, since others can read arguments, and secrets are among it.
			cmd.Env = append(slices.Clip(r.environ), r.cfg.Environ()...)
			cmd.Env = append(cmd.Env, "TENURE_LOG_LEVEL=error", "TENURE_LOG_FORMAT=json") // for the one line that says why it ended
			return cmd
		},
		Only: c.Only, Processes: c.Processes, Load: c.Load,
		Report: func(result verify.Check) {
			results = append(results, result)
			if !c.JSON {
				progress.clear()
				_, _ = io.WriteString(r.Out, checkText(result)) // what is lost here is missed at the end
			}
		},
		Progress: func(name string) { progress.step("verifying " + name) },
	})
	progress.stop()
	return errors.Join(c.conclude(r.Out, results), childError(err))
}

func (c *verifyCommand) check() error {
	if c.Processes < 2 || c.Processes > 1000 {
		return wrongFlag("processes", strconv.Itoa(c.Processes), "2 to 1000")
	}
	if c.Load < time.Second || c.Load > time.Hour {
		return wrongFlag("load", c.Load.String(), "1s to 1h")
	}
	for _, name := range c.Only {
		if !slices.Contains(verify.Names(), name) {
			return wrongFlag("only", strconv.Quote(name), "some of "+strings.Join(verify.Names(), ","))
		}
	}
	return nil
}

// conclude prints what is left to print, and returns whether every promise held.
func (c *verifyCommand) conclude(out io.Writer, results []verify.Check) error {
	ok := true
	for _, result := range results {
		ok = ok && result.OK()
	}
	if c.JSON {
		list := make([]checkStatus, len(results)) // empty, not null
		for i, result := range results {
			list[i] = checkStatus{result.Name, result.OK(), figureObject(result.Figures), result.Did, result.Saw, result.Wrong}
		}
		if err := printJSON(out, map[string]any{"ok": ok && len(results) > 0, "checks": list}); err != nil {
			return err
		}
	}
	if !ok {
		return errBroken
	}
	return nil
}

// A checkStatus is one check in the output of `tenure verify --json`.
type checkStatus struct {
	Name    string       `json:"name"`
	OK      bool         `json:"ok"`
	Figures figureObject `json:"figures"`
	Did     string       `json:"did"`
	Saw     string       `json:"saw"`
	Wrong   []string     `json:"wrong,omitempty"`
}

// A figureObject is an object of figures in their order.
type figureObject verify.Figures

func (f figureObject) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, figure := range f {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(figure.Name)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s:%d", name, figure.Value)
	}
	return []byte("{" + b.String() + "}"), nil
}

// checkText returns a check as people read it.
func checkText(c verify.Check) string {
	var b strings.Builder
	verdict := "ok"
	if !c.OK() {
		verdict = "BROKEN"
	}
	var figures []string
	for _, f := range c.Figures {
		figures = append(figures, f.Name+" "+strconv.FormatInt(f.Value, 10))
	}
	fmt.Fprintf(&b, "%s: %s\n  did      %s\n  saw      %s\n  figures  %s\n", c.Name, verdict, c.Did, c.Saw, strings.Join(figures, ", "))
	for _, wrong := range c.Wrong {
		fmt.Fprintf(&b, "  BROKEN   %s\n", wrong)
	}
	return b.String()
}

// childError gives what a child said the exit code that the child had for it.
func childError(err error) error {
	if child, ok := errors.AsType[*verify.ChildError](err); ok && child.Code > 0 {
		return &codeError{child.Code, err}
	}
	return err
}

// tryServer starts a server in this process for a command that tries things out, with
// a bucket and a store of its own that end with it.
func (r *run) tryServer(ctx context.Context, command string) (*embedded.Server, error) {
	if setting := r.cfg.Login(); setting != "" {
		return nil, fmt.Errorf("%w: %s is of no use without a server: name one with --server", config.ErrInvalid, setting)
	}
	server, err := embedded.Start(embedded.Listen("127.0.0.1:0"), embedded.Logger(r.log))
	if err != nil {
		return nil, err
	}
	r.log.WarnContext(ctx, "no server is named, so one runs in this process, and ends with it", "command", command)
	if err := r.freshBucket(ctx, server, 1); err != nil {
		server.Stop()
		return nil, err
	}
	return server, nil
}

// verifyChild is a process that verify starts; it is not for people.
type verifyChild struct {
	*config.Lease
	Args []string `arg:"" name:"arg"`
}

func (c *verifyChild) Run(ctx context.Context, r *run) error {
	nc, js, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	b, err := r.openBucket(ctx, js, bucket.AttachOnly())
	if err != nil {
		return err
	}
	member := verify.Member{
		Bucket: b, TTL: c.TTL, Margin: c.LeaseMargin(), Renewals: c.Renewals, In: r.In, Out: r.Out,
	}
	return member.Child(ctx, c.Args)
}
