package plan

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Format is the newest stored format that this package reads, and the one it
// writes.
const Format = 1

// Limits of what [Parse] reads and [Plan.Marshal] writes.
const (
	MaxSize       = 8 << 20 // bytes
	MaxPartitions = 1 << 20
	MaxWorkers    = 1 << 16
)

// A Plan is a [Result] as it is stored for all workers to follow. Partitions
// have no names in it: their order is that of the group's settings.
type Plan struct {
	Format  int // of the stored object, see [Format]
	Version int // of the planner, see [Version]

	View     uint64 // stream sequence that the inputs include
	Settings uint64 // revision of the group's settings that it was made from

	Leader      string // who made it
	LeaderEpoch uint64

	Workers []WorkerRef
	Assign  []int    // per partition: index into Workers, or None
	Why     []Reason // per partition
}

// A WorkerRef names one session.
type WorkerRef struct {
	ID    string `json:"id"`
	Epoch uint64 `json:"epoch"`
}

// NewPlan returns a plan with the assignment that [Make] gave for in. Who made
// it from which view and settings is for the caller to fill in. The plan shares
// the result's memory.
func NewPlan(in Input, r Result) *Plan {
	p := &Plan{Format: Format, Version: Version, Assign: r.Assign, Why: r.Reason}
	p.Workers = make([]WorkerRef, len(in.Workers))
	for i, w := range in.Workers {
		p.Workers[i] = WorkerRef{ID: w.ID, Epoch: w.Epoch}
	}
	return p
}

// stored is the JSON form of a plan. Assign holds, for each partition, 0 for
// none or the index of its worker plus one, as a uvarint; Why one byte each.
type stored struct {
	Format      int         `json:"format"`
	Planner     int         `json:"planner"`
	View        uint64      `json:"view"`
	Settings    uint64      `json:"settings"`
	Leader      string      `json:"leader"`
	LeaderEpoch uint64      `json:"leader_epoch"`
	Partitions  int         `json:"partitions"`
	Workers     []WorkerRef `json:"workers"`
	Assign      []byte      `json:"assign"`
	Why         []byte      `json:"why"`
}

// header is what every stored format has.
type header struct {
	Format int `json:"format"`
}

// Marshal returns the stored form, a JSON object of about 2.7 bytes for each
// partition plus the names of the workers. A plan that [Parse] would refuse is
// a [*FormatError].
func (p *Plan) Marshal() ([]byte, error) {
	s := stored{
		Format: Format, Planner: p.Version, View: p.View, Settings: p.Settings,
		Leader: p.Leader, LeaderEpoch: p.LeaderEpoch,
		Partitions: len(p.Assign), Workers: p.Workers,
	}
	if p.Format != Format {
		return nil, malformed("format", strconv.Itoa(Format), "%d", p.Format)
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	if len(p.Why) != len(p.Assign) {
		return nil, malformed("why", fmt.Sprintf("%d reasons", len(p.Assign)), "%d", len(p.Why))
	}
	s.Assign = make([]byte, 0, 2*len(p.Assign))
	s.Why = make([]byte, len(p.Why))
	for i, w := range p.Assign {
		if w < None || w >= len(p.Workers) {
			return nil, badWorker(i, int64(w), len(p.Workers))
		}
		s.Assign = binary.AppendUvarint(s.Assign, uint64(w+1))
		s.Why[i] = byte(p.Why[i])
	}
	data, err := json.Marshal(s)
	switch {
	case err != nil:
		return nil, err
	case len(data) > MaxSize:
		return nil, malformed("", fmt.Sprintf("at most %d bytes", MaxSize), "%d bytes", len(data))
	}
	return data, nil
}

// Parse reads what [Plan.Marshal] wrote, of any planner version. It takes any
// bytes: what is no plan, or one in a newer format, is a [*FormatError]. Memory
// is bounded by a multiple of len(data), and len(data) by [MaxSize].
func Parse(data []byte) (*Plan, error) {
	if len(data) > MaxSize {
		return nil, malformed("", fmt.Sprintf("at most %d bytes", MaxSize), "%d bytes", len(data))
	}
	// The format comes first: a newer one may have other types for the rest.
	var head header
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, malformed("", "a plan as JSON", "%v", err)
	}
	switch {
	case head.Format > Format:
		return nil, &FormatError{
			Field: "format", Have: strconv.Itoa(head.Format),
			Want: "at most " + strconv.Itoa(Format), kind: ErrNewer,
		}
	case head.Format < 1:
		return nil, malformed("format", "at least 1", "%d", head.Format)
	}
	var s stored
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, malformed("", "a plan as JSON", "%v", err)
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	p := &Plan{
		Format: s.Format, Version: s.Planner, View: s.View, Settings: s.Settings,
		Leader: s.Leader, LeaderEpoch: s.LeaderEpoch, Workers: s.Workers,
	}
	if err := p.read(&s); err != nil {
		return nil, err
	}
	return p, nil
}

// read fills in the assignment. It checks the lengths before it allocates: a
// partition takes at least one byte of each field.
func (p *Plan) read(s *stored) error {
	if len(s.Why) != s.Partitions {
		return malformed("why", fmt.Sprintf("%d reasons", s.Partitions), "%d", len(s.Why))
	}
	if len(s.Assign) < s.Partitions {
		return malformed("assign", fmt.Sprintf("%d partitions", s.Partitions), "%d bytes", len(s.Assign))
	}
	p.Assign = make([]int, s.Partitions)
	p.Why = make([]Reason, s.Partitions)
	rest := s.Assign
	for i := range p.Assign {
		v, n := binary.Uvarint(rest)
		if n <= 0 {
			return malformed("assign", fmt.Sprintf("%d partitions", s.Partitions), "%d, then no number", i)
		}
		if v > uint64(len(s.Workers)) {
			return badWorker(i, int64(v)-1, len(s.Workers))
		}
		rest = rest[n:]
		p.Assign[i], p.Why[i] = int(v)-1, Reason(s.Why[i])
	}
	if len(rest) > 0 {
		return malformed("assign", fmt.Sprintf("%d partitions", s.Partitions), "%d more bytes", len(rest))
	}
	return nil
}

// check looks at everything but the assignment.
func (s *stored) check() error {
	switch {
	case s.Planner < 1:
		return malformed("planner", "at least 1", "%d", s.Planner)
	case s.Leader == "":
		return malformed("leader", "the ID of a worker", "none")
	case !utf8.ValidString(s.Leader):
		return malformed("leader", "an ID in UTF-8", "%q", s.Leader)
	case s.Partitions < 0 || s.Partitions > MaxPartitions:
		return malformed("partitions", fmt.Sprintf("0 to %d", MaxPartitions), "%d", s.Partitions)
	case len(s.Workers) > MaxWorkers:
		return malformed("workers", fmt.Sprintf("at most %d", MaxWorkers), "%d", len(s.Workers))
	}
	seen := make(map[string]bool, len(s.Workers))
	for i, w := range s.Workers {
		switch {
		case w.ID == "":
			return malformed("workers", "an ID for each", "none for number %d", i)
		case !utf8.ValidString(w.ID):
			return malformed("workers", "IDs in UTF-8", "%q", w.ID)
		case seen[w.ID]:
			return malformed("workers", "each ID once", "%q again", w.ID)
		}
		seen[w.ID] = true
	}
	return nil
}

func badWorker(partition int, have int64, workers int) error {
	return malformed("assign", fmt.Sprintf("a worker of %d, or %d for none", workers, None),
		"%d for partition %d", have, partition)
}
