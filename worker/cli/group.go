package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"tenure/claim"
	"tenure/config"
	"tenure/kvlock/bucket"
)

// adminTimeout is how long an operator waits for a change to be stored.
const adminTimeout = 15 * time.Second

type groupCommand struct {
	Resize   resizeCommand   `cmd:"" help:"Change the partitions."`
	Pin      pinCommand      `cmd:"" help:"Have partitions run on one worker only."`
	Unpin    unpinCommand    `cmd:"" help:"Take pins away."`
	Pause    pauseCommand    `cmd:"" help:"Have partitions run nowhere."`
	Resume   resumeCommand   `cmd:"" help:"End a pause or a quarantine."`
	Cordon   cordonCommand   `cmd:"" help:"Give workers nothing new."`
	Uncordon uncordonCommand `cmd:"" help:"End a cordon or a drain."`
	Drain    drainCommand    `cmd:"" help:"Have workers give everything away and stay."`
	Move     moveCommand     `cmd:"" help:"Move one partition now."`
	Weigh    weighCommand    `cmd:"" help:"Say how much partitions weigh."`
	Policy   policyCommand   `cmd:"" help:"Print or change how partitions are moved."`
	Explain  explainCommand  `cmd:"" help:"Print why a partition is where it is, and where it was."`
	Plan     planCommand     `cmd:"" help:"Print what would move if workers came or went."`
}

// An adminFlags is what the commands have in common that change a group.
type adminFlags struct {
	JSON bool          `name:"json" help:"Print one JSON object."`
	Wait time.Duration `name:"wait" placeholder:"DURATION" help:"Wait so long at most until it has been carried out. It stays asked for in any case."`
}

// options returns what the flags ask the library for.
func (f adminFlags) options(more ...claim.VerbOption) []claim.VerbOption {
	if f.Wait > 0 {
		more = append(more, claim.Wait())
	}
	return more
}

// A deed is what a command has done to a group, as it is printed.
type deed struct {
	Group      string   `json:"group"`
	Verb       string   `json:"verb"`
	Partitions []string `json:"partitions,omitempty"`
	Workers    []string `json:"workers,omitempty"`
	CarriedOut bool     `json:"carried_out"` // it was waited for
}

// do makes a change and says so.
func (f adminFlags) do(ctx context.Context, r *run, group string, d deed, change func(context.Context, *claim.Admin) error) error {
	if f.Wait < 0 {
		return wrongFlag("wait", f.Wait.String(), "0s or more")
	}
	return r.admin(ctx, group, func(ctx context.Context, a *claim.Admin) error {
		ctx, cancel := context.WithTimeout(ctx, adminTimeout+f.Wait)
		defer cancel()
		if f.Wait > 0 {
			ctx, cancel = context.WithTimeoutCause(ctx, f.Wait, fmt.Errorf("it is not done after %v", f.Wait))
			defer cancel()
		}
		if err := change(ctx, a); err != nil {
			return hinted(err)
		}
		d.Group, d.CarriedOut = group, f.Wait > 0
		if f.JSON {
			return printJSON(r.Out, d)
		}
		what := append(d.Partitions, d.Workers...)
		for i, name := range what {
			what[i] = shown(name)
		}
		state := "stored"
		if d.CarriedOut {
			state = "done"
		}
		_, err := fmt.Fprintf(r.Out, "group %s: %s %s: %s\n", shown(group), d.Verb, strings.Join(what, " "), state)
		return err
	})
}

// admin connects to an existing bucket, and calls f with an Admin of the group.
func (r *run) admin(ctx context.Context, group string, f func(context.Context, *claim.Admin) error) error {
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
	try, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	a, err := claim.NewAdmin(try, b, group)
	if err != nil {
		return err
	}
	return f(ctx, a)
}

// hinted says what to do about an error.
func hinted(err error) error {
	switch {
	case errors.Is(err, claim.ErrWorker):
		return fmt.Errorf("%w; `tenure status` shows the workers", err)
	case errors.Is(err, claim.ErrPartition):
		return fmt.Errorf("%w; `tenure status` shows the partitions", err)
	}
	return err
}

// names returns the names in arguments, each of which may be a list with commas.
func names(args []string) []string {
	var list []string
	for _, arg := range args {
		for name := range strings.SplitSeq(arg, ",") {
			if name = strings.TrimSpace(name); name != "" {
				list = append(list, name)
			}
		}
	}
	return list
}

type resizeCommand struct {
	adminFlags
	AfterDrain bool     `name:"after-drain" help:"Start a numbered partition only when every old one whose keys it may get has been drained."`
	Parent     []string `name:"parent" sep:"none" placeholder:"CHILD=PARENT,…" help:"Start a new partition only when these old ones have been drained. May be given again."`

	Group      string `arg:"" name:"group" help:"Name of the group."`
	Partitions string `arg:"" name:"partitions" help:"Number of partitions, or their names separated by commas."`
}

func (*resizeCommand) Help() string {
	return `Changes the partitions of a group while it works. Those that stay run on. Those that are gone drain, and what was said
of them is forgotten; their checkpoints stay, for a later resize that names them again. New ones start at once.

With --after-drain a key is in no two partitions at a time, if its partition is its hash modulo their number: partitions
whose keys come from others wait until these have been drained, and those that lose keys are drained too.

Example:

    tenure group resize orders 32 --after-drain --wait 1m`
}

func (c *resizeCommand) Run(ctx context.Context, r *run) error {
	list, err := (&config.Pool{Partitions: c.Partitions}).Names()
	if err != nil {
		return err
	}
	opts := c.options()
	if c.AfterDrain {
		opts = append(opts, claim.AfterDrain())
	}
	if len(c.Parent) > 0 {
		parents := make(map[string][]string)
		for _, arg := range c.Parent {
			child, of, ok := strings.Cut(arg, "=")
			if !ok || child == "" || len(names([]string{of})) == 0 {
				return wrongFlag("parent", strconv.Quote(arg), "CHILD=PARENT, with several parents separated by commas")
			}
			parents[child] = append(parents[child], names([]string{of})...)
		}
		opts = append(opts, claim.AfterParents(parents))
	}
	shown := list
	if len(list) > 16 {
		shown = append(list[:0:0], list[:8]...)
		shown = append(shown, fmt.Sprintf("and %d more", len(list)-8))
	}
	return c.do(ctx, r, c.Group, deed{Verb: "resize", Partitions: shown}, func(ctx context.Context, a *claim.Admin) error {
		return a.Resize(ctx, list, opts...)
	})
}

// A partitionsCommand has partitions as arguments.
type partitionsCommand struct {
	adminFlags
	Group      string   `arg:"" name:"group" help:"Name of the group."`
	Partitions []string `arg:"" name:"partition" help:"Names of partitions, also separated by commas."`
}

func (c *partitionsCommand) run(ctx context.Context, r *run, verb string, change func(*claim.Admin, context.Context, []string, ...claim.VerbOption) error) error {
	list := names(c.Partitions)
	return c.do(ctx, r, c.Group, deed{Verb: verb, Partitions: list}, func(ctx context.Context, a *claim.Admin) error {
		return change(a, ctx, list, c.options()...)
	})
}

type pauseCommand struct{ partitionsCommand }

func (*pauseCommand) Help() string {
	return `Has partitions drain and run nowhere, whatever comes and goes, until they are resumed.

Example:

    tenure group pause orders 17 --wait 1m`
}

func (c *pauseCommand) Run(ctx context.Context, r *run) error {
	return c.run(ctx, r, "pause", (*claim.Admin).Pause)
}

type resumeCommand struct{ partitionsCommand }

func (*resumeCommand) Help() string {
	return `Has partitions run again that are paused, or in quarantine because they failed too often.

Example:

    tenure group resume orders 17`
}

func (c *resumeCommand) Run(ctx context.Context, r *run) error {
	return c.run(ctx, r, "resume", (*claim.Admin).Resume)
}

type unpinCommand struct{ partitionsCommand }

func (*unpinCommand) Help() string {
	return `Takes the pins of partitions away. They stay where they are until something else moves them.

Example:

    tenure group unpin orders 17`
}

func (c *unpinCommand) Run(ctx context.Context, r *run) error {
	return c.run(ctx, r, "unpin", (*claim.Admin).Unpin)
}

type pinCommand struct {
	adminFlags
	Absent bool `name:"absent" help:"The worker need not be there now."`

	Group      string `arg:"" name:"group" help:"Name of the group."`
	Partitions string `arg:"" name:"partitions" help:"Names of partitions, separated by commas."`
	Worker     string `arg:"" name:"worker" help:"Id of the worker."`
}

func (*pinCommand) Help() string {
	return `Has partitions run on one worker while it is there and has room, and elsewhere only while it is not.

Example:

    tenure group pin orders 3,17 big-host --wait 1m`
}

func (c *pinCommand) Run(ctx context.Context, r *run) error {
	list, opts := names([]string{c.Partitions}), c.options()
	if c.Absent {
		opts = append(opts, claim.Absent())
	}
	return c.do(ctx, r, c.Group, deed{Verb: "pin", Partitions: list, Workers: []string{c.Worker}}, func(ctx context.Context, a *claim.Admin) error {
		return a.Pin(ctx, c.Worker, list, opts...)
	})
}

type moveCommand struct {
	adminFlags
	Group     string `arg:"" name:"group" help:"Name of the group."`
	Partition string `arg:"" name:"partition" help:"Name of the partition."`
	Worker    string `arg:"" name:"worker" help:"Id of the worker that it goes to."`
}

func (*moveCommand) Help() string {
	return `Moves a partition to a worker, once. It is no pin: later it moves as all others do. If the worker has too many then,
another partition goes the other way.

Example:

    tenure group move orders 17 big-host --wait 1m`
}

func (c *moveCommand) Run(ctx context.Context, r *run) error {
	return c.do(ctx, r, c.Group, deed{Verb: "move", Partitions: []string{c.Partition}, Workers: []string{c.Worker}}, func(ctx context.Context, a *claim.Admin) error {
		return a.Move(ctx, c.Partition, c.Worker, c.options()...)
	})
}

// A workersCommand has workers as arguments.
type workersCommand struct {
	adminFlags
	Absent bool `name:"absent" help:"The workers need not be there now."`

	Group   string   `arg:"" name:"group" help:"Name of the group."`
	Workers []string `arg:"" name:"worker" help:"Ids of workers, also separated by commas."`
}

func (c *workersCommand) run(ctx context.Context, r *run, verb string, change func(*claim.Admin, context.Context, []string, ...claim.VerbOption) error) error {
	list, opts := names(c.Workers), c.options()
	if c.Absent {
		opts = append(opts, claim.Absent())
	}
	return c.do(ctx, r, c.Group, deed{Verb: verb, Workers: list}, func(ctx context.Context, a *claim.Admin) error {
		return change(a, ctx, list, opts...)
	})
}

type cordonCommand struct{ workersCommand }

func (*cordonCommand) Help() string {
	return `Has workers keep what they have and get nothing new, except what is pinned to them.

Example:

    tenure group cordon orders old-host`
}

func (c *cordonCommand) Run(ctx context.Context, r *run) error {
	return c.run(ctx, r, "cordon", (*claim.Admin).Cordon)
}

type uncordonCommand struct{ workersCommand }

func (*uncordonCommand) Help() string {
	return `Ends a cordon or a drain of workers.

Example:

    tenure group uncordon orders old-host`
}

func (c *uncordonCommand) Run(ctx context.Context, r *run) error {
	return c.run(ctx, r, "uncordon", (*claim.Admin).Uncordon)
}

type drainCommand struct{ workersCommand }

func (*drainCommand) Help() string {
	return `Has workers give away everything that others can take. They stay in the group and get nothing until they are
uncordoned, also when they come back under their id.

Example:

    tenure group drain orders old-host --wait 1m`
}

func (c *drainCommand) Run(ctx context.Context, r *run) error {
	return c.run(ctx, r, "drain", (*claim.Admin).Drain)
}

type weighCommand struct {
	JSON bool `name:"json" help:"Print one JSON object."`

	Group      string   `arg:"" name:"group" help:"Name of the group."`
	Weight     int      `arg:"" name:"weight" help:"1 to 64; 1 is the default."`
	Partitions []string `arg:"" name:"partition" help:"Names of partitions, also separated by commas."`
}

func (*weighCommand) Help() string {
	return `Says how much partitions weigh beside others, when the loads of workers are levelled.

Example:

    tenure group weigh orders 4 17`
}

func (c *weighCommand) Run(ctx context.Context, r *run) error {
	list := names(c.Partitions)
	return adminFlags{JSON: c.JSON}.do(ctx, r, c.Group, deed{Verb: "weigh", Partitions: list}, func(ctx context.Context, a *claim.Admin) error {
		return a.Weigh(ctx, c.Weight, list)
	})
}
