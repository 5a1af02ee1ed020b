package verify

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// What an [event] says.
const (
	waiting = "waiting" // who stands in line
	gained  = "gained"  // who has the thing from now on
	trusts  = "trusts"  // who still has it, and trusts in that until a time
	ended   = "ended"   // who leaves the thing, or has found that it is lost
	wrote   = "wrote"   // what became of a write that was asked for
	late    = "late"    // what became of writes after the hold had ended
	lost    = "lost"    // who has lost the thing though nobody stopped it
	done    = "done"    // who has done all it was started for
	failed  = "failed"  // who has ended with an error; its parent says so
)

// maxEvent is the length of a line that every system writes to a pipe in one piece.
const maxEvent = 512

// An event is one line of a child.
type event struct {
	What  string `json:"what"`
	Who   string `json:"who"`
	Thing string `json:"thing,omitempty"` // a lock or a partition
	Token uint64 `json:"token,omitempty"`
	At    int64  `json:"at"`              // Unix nanoseconds, by the clock of the machine
	Until int64  `json:"until,omitempty"` // trusts: the same
	Text  string `json:"text,omitempty"`  // wrote, lost, failed: what went wrong; late: what the hold says of itself
	Code  int    `json:"code,omitempty"`  // failed: exit code
	N     int    `json:"n,omitempty"`     // done: how many times

	Fault  bool `json:"fault,omitempty"`  // lost: it cannot have been an outage
	Stored bool `json:"stored,omitempty"` // late: the write through the hold was stored
	Forced bool `json:"forced,omitempty"` // late: the write past the hold's own check was stored

	Waited time.Duration `json:"waited,omitempty"` // gained: since it was asked for
}

func (e event) at() time.Time    { return time.Unix(0, e.At) }
func (e event) until() time.Time { return time.Unix(0, e.Until) }

// write writes e as one line, in one piece.
func (e event) write(w io.Writer) error {
	e.At = time.Now().UnixNano()
	line, err := json.Marshal(e)
	for err == nil && len(line) >= maxEvent && e.Text != "" {
		e.Text = e.Text[:max(0, min(len(e.Text)-1, len(e.Text)-(len(line)-maxEvent)-1))]
		line, err = json.Marshal(e)
	}
	if err != nil {
		return fmt.Errorf("event: %w", err)
	}
	_, err = w.Write(append(line, '\n'))
	return err
}
