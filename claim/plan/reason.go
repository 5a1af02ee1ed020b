package plan

import "strconv"

// A Reason says why a partition is where the plan puts it. The numbers are part
// of the stored format: they are never used again for something else.
type Reason uint8

const (
	Kept        Reason = 0  // stays with its owner
	Placed      Reason = 1  // had no owner
	Balanced    Reason = 2  // moves because another worker had too little
	Drained     Reason = 3  // moves because its owner is draining
	Overflow    Reason = 4  // moves because its owner is above its capacity
	Pinned      Reason = 5  // is, or goes, where it is pinned to
	PinAbsent   Reason = 6  // runs elsewhere: the worker it is pinned to is absent or draining
	PinFull     Reason = 7  // runs elsewhere: the worker it is pinned to is full
	Cordoned    Reason = 8  // stays with its cordoned owner
	Cooling     Reason = 9  // stays: moving it failed a short time ago
	DrainWaits  Reason = 10 // stays with its draining owner: nobody can take it
	Paused      Reason = 11 // unassigned by an operator
	Quarantined Reason = 12 // unassigned: it failed too often
	NoRoom      Reason = 13 // unassigned: every worker is full
	NoWorker    Reason = 14 // unassigned: no worker takes new partitions
	Waiting     Reason = 15 // unassigned: partitions of an older layout have to be drained first
	Awaited     Reason = 16 // stays with its owner, which has gone and is expected back
	Elsewhere   Reason = 17 // had no owner, and goes to another worker than the one that gave it up
)

var reasons = [...]string{
	Kept:        "kept",
	Placed:      "placed: it had no owner",
	Balanced:    "balanced: another worker had too little",
	Drained:     "drained: its owner is draining",
	Overflow:    "overflow: its owner is above its capacity",
	Pinned:      "pinned",
	PinAbsent:   "elsewhere: the pinned worker is absent or draining",
	PinFull:     "elsewhere: the pinned worker is full",
	Cordoned:    "kept: its owner is cordoned",
	Cooling:     "kept: moving it failed a short time ago",
	DrainWaits:  "kept: its owner is draining but nobody can take it",
	Paused:      "unassigned: paused",
	Quarantined: "unassigned: quarantined",
	NoRoom:      "unassigned: every worker is full",
	NoWorker:    "unassigned: no worker takes new partitions",
	Waiting:     "unassigned: partitions that it follows are not drained yet",
	Awaited:     "kept: its owner has gone and is expected back",
	Elsewhere:   "placed: another worker has given it up",
}

// String returns a short explanation for people. A number that only a newer
// planner knows is given as such.
func (r Reason) String() string {
	if int(r) < len(reasons) {
		return reasons[r]
	}
	return "reason " + strconv.Itoa(int(r))
}
