package cli

import (
	"log/slog"
	"os"
	"os/exec"

	"tenure/worker/proc"
)

// wardenCommand is what this program runs itself as, to end what it has started when
// it cannot do so any more.
type wardenCommand struct{}

func (*wardenCommand) Run(r *run) error {
	proc.Guard(r.In)
	return nil
}

// ward starts the warden of this process. Without one, commands end with this process
// as far as the system sees to it. The returned function ends it.
func (r *run) ward() func() {
	program, err := os.Executable()
	if err == nil {
		cmd := exec.Command(program, "warden")
		cmd.Env = []string{"GOMAXPROCS=1"} // it waits
		var warden *proc.Warden
		if warden, err = proc.Ward(cmd); err == nil {
			return func() { _ = warden.Close() } // it has nothing to say
		}
	}
	r.log.Warn("if this process is killed, what its commands have started may be left", slog.Any("err", err))
	return func() {}
}
