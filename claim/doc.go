// Package claim shares the partitions of a group out among the workers that are
// alive, each partition to exactly one, and moves as few as possible when
// workers come and go.
//
// # What holds
//
//   - At most one handler of a partition believes that it owns it, as long as
//     the clock skew of the servers and the drift of this machine's clock over
//     one TTL stay, together, below the margin.
//   - [Partition.Token] is a fencing token: every later claim of the partition
//     has a larger one. [Partition.Save] is refused by the server once the claim
//     has ended. Give the token to every other resource that you write to.
//   - A move is one write of the old owner, after its handler has returned, with
//     the staged checkpoint in the same atomic batch.
//   - A worker that leaves is replaced within milliseconds, one that dies within
//     its TTL + 1 s. That takes longer only while JetStream itself has no leader,
//     while the worker's rejoin delay goes on, and by one more TTL if it looks as if
//     the store had been away: several sessions ended at once, or one did right
//     after an outage.
//
// # What does not hold
//
// A process that was stopped and goes on does not know that its claim has ended
// until it looks: what it then does to a resource that checks no token happens.
// A handler that ignores the end of its context may overlap with the next owner's
// after the session was lost. Who asks for [WithForceAfter] or [WithDegraded] gives
// the first promise up, for the partitions and as far as these say. Deleting keys of the bucket by hand breaks the
// first promise above. [Status] and [Claimer.Held] are for looking, not proof.
//
// # How it works
//
// Each worker has a session: one key with a TTL that heartbeats re-arm. Its epoch
// is the revision of its first record. Each partition has a claim: a record of
// its owner's id and epoch, without a TTL. A claim holds while its epoch is not
// proven dead, so the cost of staying alive does not depend on the number of
// partitions. The session with the smallest epoch leads: it writes the plan,
// which says who should own what and is evidence of nothing. Workers follow it:
// they take what nobody owns, hand over what the plan gives to others, and wait
// for what others will hand to them.
//
// A death is a write, never an absence: see death.go. A claim changes only by a
// compare-and-swap of its owner, or of the next owner after the owner's epoch was
// proven dead.
//
// # Files
//
//	claimer.go    New, Run: a worker from joining to leaving
//	session.go    the heartbeat and the trust in it
//	death.go      how an epoch is proven to have ended
//	absent.go     who is waited for
//	process.go    proof that a process has ended
//	rescue.go     what no plan cares for
//	health.go     whether a worker does its share
//	kick.go       an operator ends a session
//	follow.go     the plan, the predecessor, who leads
//	lead.go       making the plan; the planner itself is package plan
//	slot.go       one partition: gaining the claim
//	serve.go      one partition: running the handler and giving the claim away
//	hold.go       writes under the claim's fence
//	care.go       stalled and stuck handlers, quarantine, running without trust
//	prepare.go    warming up for a partition that is about to come
//	partition.go  what a handler sees
//	trace.go      who is told what happens
//	peer.go       hints between workers
//	status.go     what the bucket says of a group; watch.go: and what changes
//	settings.go   what operators say of a group
//	admin.go      changing that; resize.go, gate.go: another number of partitions
//	explain.go    why a partition is where it is, and what if; history.go: where it was
//	input.go      what a plan is made from; pace.go: how many moves at a time
//	record.go     what is stored
package claim
