package claim

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"tenure/claim/plan"
	"tenure/kvlock/bucket"
)

// settingsVersion is the newest version of the settings that is read. Settings
// that say nothing but the partitions are written as version 1, which clients
// that know no more can read.
const settingsVersion = 2

// Bounds of what a group's settings may say.
const (
	maxPartitions = 1_000_000
	maxGates      = 16
)

// settings are what operators say of a group: either a number of partitions
// named "0" to "count-1", or their names, and what shall become of some of them.
// They are changed by CAS on the newest record only; see [Admin].
type settings struct {
	Version int      `json:"v"`
	Count   int      `json:"count,omitempty"`
	Names   []string `json:"names,omitempty"`

	// Layout is the revision of the record since which the partitions are these,
	// 0 for this one's own. Plans are made for a layout.
	Layout uint64 `json:"layout,omitempty"`

	Nonce string `json:"nonce,omitempty"` // of the attempt
	Prev  string `json:"prev,omitempty"`  // nonce of the record it replaced

	Pins     map[string]string  `json:"pins,omitempty"`     // partition: worker
	Moves    map[string]oneMove `json:"moves,omitempty"`    // by partition
	Weights  map[string]int     `json:"weights,omitempty"`  // by partition; 1 for the others
	Paused   []string           `json:"paused,omitempty"`   // partitions, sorted
	Cordoned []string           `json:"cordoned,omitempty"` // workers, sorted
	Drained  []string           `json:"drained,omitempty"`  // workers, sorted
	Gates    []gate             `json:"gates,omitempty"`
	Policy   *Policy            `json:"policy,omitempty"`
}

// A oneMove is a pin that counts only while the owner is one that the partition
// had before.
type oneMove struct {
	Worker string `json:"to"`
	Since  uint64 `json:"since,omitempty"` // revision of the record that began it, 0 for this one's own
}

// A gate keeps partitions of a new layout from starting before others have been
// drained that ran under an older one.
type gate struct {
	Since   uint64              `json:"since,omitempty"`   // revision of the new layout, 0 for this record's own
	Count   int                 `json:"count,omitempty"`   // numbered partitions before
	To      int                 `json:"to,omitempty"`      // and after
	Parents map[string][]string `json:"parents,omitempty"` // named: by child
}

// Policy is how a group's partitions are moved. The zero value levels the loads
// at once.
type Policy struct {
	// Zones says what workers' zones mean: "" nothing; "spread" gives every zone
	// the same share; "stay" keeps a partition that moves in its zone where that
	// costs neither balance nor moves.
	Zones string `json:"zones,omitempty"`

	// MovesPerMinute bounds how many moves for balance are ordered within any
	// minute, 0 for no limit. Pins, drains and partitions without an owner are
	// never held back. A new leader begins to count anew.
	MovesPerMinute int `json:"moves_per_minute,omitempty"`

	// Hysteresis is the difference between the loads of two workers up to which
	// nothing is moved for balance.
	Hysteresis int `json:"hysteresis,omitempty"`

	// Rollout says that workers of older builds are about to be replaced: nothing
	// is moved for balance while builds differ, and what needs a worker goes to
	// the newest, up to twice its share.
	Rollout bool `json:"rollout,omitempty"`

	// CoolDown is how long a partition stays with its owner after the worker that
	// it was to move to has ended before it got it, in whole seconds; 0 for not at
	// all.
	CoolDown time.Duration `json:"cool_down,omitempty"`
}

func (p Policy) check() error {
	switch {
	case p.Zones != string(plan.ZonesIgnored) && p.Zones != string(plan.ZonesSpread) && p.Zones != string(plan.ZonesStay):
		return &AdminError{What: "policy: zones", Have: strconv.Quote(p.Zones), Want: `"", "spread" or "stay"`, Err: ErrSettings}
	case p.MovesPerMinute < 0:
		return &AdminError{What: "policy: moves per minute", Have: strconv.Itoa(p.MovesPerMinute), Want: "0 or more", Err: ErrSettings}
	case p.Hysteresis < 0:
		return &AdminError{What: "policy: hysteresis", Have: strconv.Itoa(p.Hysteresis), Want: "0 or more", Err: ErrSettings}
	case p.CoolDown < 0 || p.CoolDown%time.Second != 0 || p.CoolDown > time.Hour:
		return &AdminError{What: "policy: cool-down", Have: p.CoolDown.String(), Want: "whole seconds, at most 1h0m0s", Err: ErrSettings}
	}
	return nil
}

// parseSettings reads the settings of any version up to settingsVersion. What
// cannot be read is an [*AdminError] that matches [ErrSettings].
func parseSettings(e bucket.Entry) (settings, error) {
	bad := func(have, want string) (settings, error) {
		return settings{}, &AdminError{What: "settings in key " + strconv.Quote(e.Key), Have: have, Want: want, Err: ErrSettings}
	}
	if e.Marker {
		return bad("the marker of a removal", "a record")
	}
	var head struct {
		Version int `json:"v"`
	}
	if err := json.Unmarshal(e.Value, &head); err != nil {
		return bad(err.Error(), "an object of JSON")
	}
	if head.Version < 1 || head.Version > settingsVersion {
		return bad(fmt.Sprintf("version %d", head.Version), fmt.Sprintf("version 1 to %d", settingsVersion))
	}
	var s settings
	if err := json.Unmarshal(e.Value, &s); err != nil {
		return bad(err.Error(), fmt.Sprintf("version %d", head.Version))
	}
	if err := s.check(); err != nil {
		return settings{}, fmt.Errorf("settings in key %q: %w", e.Key, err)
	}
	if s.Layout > e.Revision {
		return bad(fmt.Sprintf("layout %d", s.Layout), fmt.Sprintf("at most its own revision, %d", e.Revision))
	}
	s.settle(e.Revision)
	return s, nil
}

// settle replaces what stands for the record's own revision.
func (s *settings) settle(revision uint64) {
	if s.Layout == 0 {
		s.Layout = revision
	}
	for name, m := range s.Moves {
		if m.Since == 0 {
			m.Since = revision
			s.Moves[name] = m
		}
	}
	for i := range s.Gates {
		if s.Gates[i].Since == 0 {
			s.Gates[i].Since = revision
		}
	}
}

// newSettings returns settings for the given names, in the short form if they
// are numbers in order.
func newSettings(names []string) (settings, error) {
	var s settings
	s.setPartitions(names)
	s.Version = 1
	return s, s.check()
}

func (s *settings) setPartitions(names []string) {
	s.Count, s.Names = len(names), nil
	for i, name := range names {
		if name != strconv.Itoa(i) {
			s.Count, s.Names = 0, names
			break
		}
	}
}

// same reports whether both have the same partitions in the same order.
func (s settings) same(other settings) bool {
	return s.Count == other.Count && slices.Equal(s.Names, other.Names)
}

// check reports what is wrong with the settings.
func (s settings) check() error {
	if err := s.checkPartitions(); err != nil {
		return err
	}
	bad := func(what, have, want string) error {
		return &AdminError{What: what, Have: have, Want: want, Err: ErrSettings}
	}
	for name, worker := range s.Pins {
		if _, err := bucket.EncodeName(worker); err != nil {
			return bad(fmt.Sprintf("pin of %q", name), strconv.Quote(worker), "the id of a worker")
		}
	}
	for name, m := range s.Moves {
		if _, err := bucket.EncodeName(m.Worker); err != nil {
			return bad(fmt.Sprintf("move of %q", name), strconv.Quote(m.Worker), "the id of a worker")
		}
	}
	for name, w := range s.Weights {
		if w < 1 || w > plan.MaxPartitionWeight {
			return bad(fmt.Sprintf("weight of %q", name), strconv.Itoa(w), fmt.Sprintf("1 to %d", plan.MaxPartitionWeight))
		}
	}
	for _, list := range []struct {
		what  string
		names []string
	}{{"paused", s.Paused}, {"cordoned", s.Cordoned}, {"drained", s.Drained}} {
		for i, name := range list.names {
			if i > 0 && name <= list.names[i-1] {
				return bad(list.what, fmt.Sprintf("%q after %q", name, list.names[i-1]), "names in order, each once")
			}
		}
	}
	if len(s.Gates) > maxGates {
		return bad("resizes that wait for partitions to be drained", strconv.Itoa(len(s.Gates)), fmt.Sprintf("at most %d", maxGates))
	}
	for _, g := range s.Gates {
		if g.Count < 0 || g.To < 0 || g.Count > maxPartitions || g.To > maxPartitions || (g.Count == 0) != (g.To == 0) {
			return bad("resize", fmt.Sprintf("%d to %d", g.Count, g.To), fmt.Sprintf("1 to %d each", maxPartitions))
		}
	}
	if s.Policy != nil {
		return s.Policy.check()
	}
	return nil
}

func (s settings) checkPartitions() error {
	n := s.Count + len(s.Names)
	if s.Count < 0 || s.Count > 0 && len(s.Names) > 0 || n < 1 || n > maxPartitions {
		return fmt.Errorf("partitions: have %d, want 1 to %d: %w", n, maxPartitions, ErrGroup)
	}
	seen := make(map[string]bool, len(s.Names))
	for _, name := range s.Names {
		if _, err := bucket.EncodeName(name); err != nil {
			return fmt.Errorf("partition %w", err)
		}
		if !utf8.ValidString(name) {
			return fmt.Errorf("partition %w", &bucket.NameError{Name: name, Have: "other bytes", Want: "UTF-8"})
		}
		if seen[name] {
			return fmt.Errorf("partitions: have %q twice, want each once: %w", name, ErrGroup)
		}
		seen[name] = true
	}
	return nil
}

// encode renders the settings in the oldest version that can say them.
func (s settings) encode() []byte {
	s.Version = settingsVersion
	if s.bare() {
		s.Version, s.Layout, s.Nonce, s.Prev = 1, 0, "", ""
	}
	return encode(s)
}

// bare reports whether the settings say nothing but the partitions.
func (s settings) bare() bool {
	return s.Layout == 0 && s.Nonce == "" && len(s.Pins)+len(s.Moves)+len(s.Weights)+len(s.Paused)+len(s.Cordoned)+len(s.Drained)+len(s.Gates) == 0 && s.Policy == nil
}

// clone returns a copy that can be changed.
func (s settings) clone() settings {
	s.Names = slices.Clone(s.Names)
	s.Pins, s.Moves, s.Weights = maps.Clone(s.Pins), maps.Clone(s.Moves), maps.Clone(s.Weights)
	s.Paused, s.Cordoned, s.Drained = slices.Clone(s.Paused), slices.Clone(s.Cordoned), slices.Clone(s.Drained)
	s.Gates = slices.Clone(s.Gates)
	if s.Policy != nil {
		s.Policy = new(*s.Policy)
	}
	return s
}

// partitions returns the names in the order of the plan's index.
func (s settings) partitions() []string {
	if s.Count > 0 {
		return Numbered(s.Count)
	}
	return s.Names
}

// has reports whether the group has the partition.
func (s settings) has(name string) bool {
	if s.Count == 0 {
		return slices.Contains(s.Names, name)
	}
	n, err := strconv.Atoi(name)
	return err == nil && n >= 0 && n < s.Count && strconv.Itoa(n) == name
}

// policy returns the policy in force.
func (s settings) policy() Policy {
	if s.Policy == nil {
		return Policy{}
	}
	return *s.Policy
}

// Numbered returns the names "0" to "n-1".
func Numbered(n int) []string {
	names := make([]string, max(0, n))
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	return names
}

// insert adds names to a sorted list that has each once, and remove takes them
// out.
func insert(list []string, names ...string) []string {
	list = append(list, names...)
	slices.Sort(list)
	return slices.Compact(list)
}

func remove(list []string, names ...string) []string {
	return slices.DeleteFunc(list, func(name string) bool { return slices.Contains(names, name) })
}

func contains(list []string, name string) bool {
	_, found := slices.BinarySearch(list, name)
	return found
}
