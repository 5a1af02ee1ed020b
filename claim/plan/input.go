package plan

// None stands for "no worker" where an index into [Input.Workers] is expected.
const None = -1

// Larger weights count as these, so that sums of load × weight stay exact.
// Weights below 1 count as 1.
const (
	MaxPartitionWeight = 64
	MaxWorkerWeight    = 1 << 16
)

// An Input is everything a plan depends on. [Make] does not change it.
type Input struct {
	// Group is the group's name. Ties are broken by it, not by who plans.
	Group      string
	Partitions []Partition // names are unique
	Workers    []Worker    // live sessions; IDs are unique
	Policy     Policy
}

// A Partition is one unit of work, where it runs and what is known about it.
// An index that is no worker's counts as [None].
type Partition struct {
	Name   string
	Owner  int // index of the live worker that owns it, or None
	Target int // index of the worker that the previous plan moves it to, or None

	Weight int    // its load, 1 to MaxPartitionWeight; 0 means 1
	Pin    string // ID of the worker that must run it, or empty

	// Paused and Quarantined partitions run nowhere and are no load.
	Paused      bool
	Quarantined bool

	// Waiting says that others have to be drained first: it runs nowhere until
	// then, and is no load.
	Waiting bool

	// Avoid is the ID of the worker that has given it up, or empty: without an
	// owner it goes to another one that has room, if there is one.
	Avoid string

	// Cooling says that moving it failed a short time ago: it stays with its
	// owner, even a draining one. It has no effect on an orphan.
	Cooling bool
}

// A Worker is one live session.
type Worker struct {
	ID    string
	Epoch uint64 // of the session; the plan is for this epoch only

	Capacity int    // most partitions it takes, whatever their weight; 0 means no limit
	Weight   int    // its share beside others, 1 to MaxWorkerWeight; 0 means 1
	Zone     string // see [Policy]
	Build    uint64 // larger is newer; see [Policy]

	Cordoned bool // keeps what it has and gets nothing new but pins
	Draining bool // gives up everything that somebody else can take

	// Absent says that the session has ended and the worker is expected back: what
	// it owns stays assigned to it, and it gets nothing new.
	Absent bool
}

// Zones says what [Worker.Zone] means.
type Zones string

const (
	// ZonesIgnored is the default.
	ZonesIgnored Zones = ""

	// ZonesSpread gives every zone the same share, however many workers it has.
	ZonesSpread Zones = "spread"

	// ZonesStay lets a partition that moves stay in its owner's zone where a
	// worker of that zone gets a partition. It costs neither balance nor moves.
	ZonesStay Zones = "stay"
)

// A Policy is the group's taste. The zero value levels the loads at once.
type Policy struct {
	Zones Zones

	// MaxMoves ends levelling for this plan once so many partitions are on the
	// move between workers that stay; 0 means no limit, less than 0 none. Moves under way count.
	// So do pins and what exceeds a capacity, but these are never held back.
	// Orphans and what leaves a draining worker do not count.
	MaxMoves int

	// Hysteresis is the difference in load between the most and the least
	// loaded worker up to which nothing is moved for balance. A greater one is
	// levelled out completely. 0 and 1 mean the same if partitions weigh 1.
	Hysteresis int

	// Rollout says that workers of older builds are about to be replaced. While
	// builds differ, nothing is moved for balance, and what needs a worker goes
	// to the newest build, up to twice its share, so that a partition moves once
	// and not onto a worker that is about to stop.
	Rollout bool
}
