package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"tenure/config"
)

// Stdio is where a command reads and writes. A child inherits what is an
// *os.File as it is.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// A grammar is the whole command line. Its sections are those of one
// [config.Config]; commands that share a section share its fields.
type grammar struct {
	*config.Connection
	*config.Log

	Config string `name:"config" environ:"TENURE_CONFIG" placeholder:"FILE" help:"YAML file with settings, named as the flags are."`

	Init    initCommand    `cmd:"" help:"Make the bucket, or verify it."`
	Lock    lockCommand    `cmd:"" help:"Run a command under a lock."`
	Elect   electCommand   `cmd:"" help:"Run a command while leading, or print who leads."`
	Work    workCommand    `cmd:"" help:"Run a command per partition, as one of the workers of a group."`
	Locks   locksCommand   `cmd:"" help:"Print who holds which lock."`
	Break   breakCommand   `cmd:"" help:"End the hold of a lock."`
	Status  statusCommand  `cmd:"" help:"Print who has which partition of a group."`
	Group   groupCommand   `cmd:"" help:"Change a group, or ask why a partition is where it is."`
	Verify  verifyCommand  `cmd:"" help:"Prove the promises, with processes that are killed and stopped."`
	Bench   benchCommand   `cmd:"" help:"Measure locks and claims beside raw JetStream."`
	Server  serverCommand  `cmd:"" help:"Run a NATS server, for one machine and for trying things."`
	Version versionCommand `cmd:"" help:"Print the version."`

	VerifyChild verifyChild `cmd:"" hidden:"" name:"verify-child"`

	Warden wardenCommand `cmd:"" hidden:"" name:"warden"`
}

func newGrammar(cfg *config.Config) *grammar {
	return &grammar{
		Connection: &cfg.Connection,
		Log:        &cfg.Log,
		Lock:       lockCommand{holder: holder{Lease: &cfg.Lease}},
		Elect:      electCommand{holder: holder{Lease: &cfg.Lease}},
		Work:       workCommand{Lease: &cfg.Lease, Pool: &cfg.Pool, Admin: &cfg.Admin},
		Verify:     verifyCommand{Lease: &cfg.Lease},

		VerifyChild: verifyChild{Lease: &cfg.Lease},
	}
}

// A run is what a command works with.
type run struct {
	Stdio
	cfg     *config.Config
	log     *slog.Logger
	environ []string
}

// Main runs the command that args, without the program's name, ask for, and
// returns the exit code. It blocks until the command has ended; the end of ctx
// ends the command as SIGTERM does.
func Main(ctx context.Context, args, environ []string, std Stdio) int {
	cfg := new(config.Config)
	command, err := parse(cfg, args, environ, std.Out)
	log := cfg.Logger(std.Err)
	if err == nil && command != nil {
		command.BindTo(ctx, (*context.Context)(nil))
		err = command.Run(&run{Stdio: std, cfg: cfg, log: log, environ: environ})
	}
	return report(ctx, log, err)
}

// parse fills cfg and returns the command to run, nil if help was asked for and
// has been printed.
func parse(cfg *config.Config, args, environ []string, out io.Writer) (*kong.Context, error) {
	root := newGrammar(cfg)
	helped := false
	parser, err := kong.New(root,
		kong.Name("tenure"),
		kong.Description("Locks and partition claims on NATS JetStream."),
		kong.Writers(out, io.Discard),
		kong.Exit(func(int) { helped = true }), // kong calls it after help only
		kong.Help(printHelp),
		kong.ValueFormatter(describe),
		kong.KindMapper(reflect.String, kong.MapperFunc(text)),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(duration)),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
	)
	if err != nil {
		panic(fmt.Sprintf("cli: %v", err)) // a mistake in the grammar
	}
	command, err := parser.Parse(args)
	switch {
	case helped:
		return nil, nil
	case err != nil:
		return nil, usage(err)
	}
	given := make(map[string]bool)
	for _, step := range command.Path {
		if step.Flag != nil {
			given[step.Flag.Name] = true
		}
	}
	return command, cfg.Load(config.Sources{
		Flags:   func(name string) bool { return given[name] },
		Environ: environ,
		File:    root.configFile(environ),
	})
}

// configFile returns the path of the file that the settings are read from.
func (g *grammar) configFile(environ []string) string {
	if g.Config != "" {
		return g.Config
	}
	return lookup(environ, "TENURE_CONFIG")
}

// lookup returns the value of a variable, the last if there are several.
func lookup(environ []string, name string) (value string) {
	for _, variable := range environ {
		if n, v, _ := strings.Cut(variable, "="); n == name {
			value = v
		}
	}
	return value
}

// text reads an argument or flag as it is. kong's own way turns bytes that are no
// UTF-8 into U+FFFD, and so different names into one.
func text(ctx *kong.DecodeContext, target reflect.Value) error {
	value, err := popText(ctx, "text")
	if err == nil {
		target.SetString(value)
	}
	return err
}

// duration reads a flag that is a duration.
func duration(ctx *kong.DecodeContext, target reflect.Value) error {
	value, err := popText(ctx, "duration")
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		return fmt.Errorf("have %q, want a duration such as 15s", value)
	}
	target.SetInt(int64(d))
	return nil
}

func popText(ctx *kong.DecodeContext, what string) (string, error) {
	token, err := ctx.Scan.PopValue(what)
	if err != nil {
		return "", err
	}
	value, ok := token.Value.(string)
	if !ok {
		return "", fmt.Errorf("expected %s", what)
	}
	return value, nil
}
