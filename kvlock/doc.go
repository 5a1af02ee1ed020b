// Package kvlock provides locks that live in a NATS JetStream key-value bucket.
//
// # What a lock is not
//
// A lock is the last resort. If the work can be split into partitions, give each
// worker its own (package claim); if it can be made idempotent, a duplicate does no
// harm, and neither needs a lock.
//
// A lock alone does not stop a process that was paused. It may be stopped by the
// scheduler, the garbage collector or a virtual machine at any instruction, outlive
// its hold, and go on with the next instruction as if nothing had happened. What
// stops it is the fencing token: send [Lock.Token] with every write, and let the
// resource refuse a token that is lower than the highest it has seen. Package fence
// has guards for that.
//
// The rest rests on clocks. At most one handle at a time believes in its hold as
// long as the clock skew between the NATS servers, the drift of this machine's clock
// over one TTL and the lateness of its timers stay together below the margin
// ([WithMargin]). Keep the clocks of the servers together. No client's absolute time
// decides anything.
//
// A lock is as durable as its bucket. With the server's default, which syncs to disk
// every two minutes, a power cut can lose an acknowledged write; sync_interval:
// always and three replicas are the cure. Exclusion is promised within one life of a
// bucket, and across two by the quarantine of the second, unless that was made fresh.
//
// # Use
//
// Make one [Locker] per process, on a connection with [ConnOptions]. [Locker.Do]
// runs a function under a lock and is the hardest to misuse:
//
//	err := locker.Do(ctx, "reports/nightly", func(ctx context.Context, lock *kvlock.Lock) error {
//		return write(ctx, lock.Token(), report)
//	})
//
// [Locker.TryLock] and [Locker.Lock] return the hold itself. [Locker.Semaphore] and
// [Locker.RWLock] have the same verbs. Names are 1 to 200 bytes; case matters.
//
// # The life of a hold
//
//	           own CAS stored, known in time
//	(waiting) ------------------------------> held --- Release ---------> released
//	    |                                    |   ^ \
//	    | ctx done,                  renewal |   |  \-- TTL - margin since the sending of the
//	    | bad input                  sent    |   |      last confirmed write is over: Expired
//	    v                                    v   |  \-- a later entry on the key: Taken,
//	 (error,                            confirmed|      Revoked, Removed
//	  nothing held)                    in time --+  \-- the bucket, the connection: Gone, Closed
//	                                                 \-- the maximum hold is over: Overrun
//	                                                        |
//	                                                        v
//	                                                       lost
//
// A hold that has ended never comes back. Loss by time needs no event, no network
// and no timer: [Lock.Err], [Lock.Remaining] and the Err method of [Lock.Context]
// ask the clock. Both clocks count, since the monotonic one stands still while a
// machine is suspended.
//
// An answer that was lost is resolved by reading back: every write carries a nonce.
// That JetStream does not serve for a while is no loss as long as trust lasts. An
// entry that is missing or older than known is no evidence of a loss either: a
// leader that was cut off answers from the past.
//
// # Waiting
//
// Waiting is fair: first come, first served. A waiter writes a ticket; the tickets
// of a lock are its line, in the order of their revisions. A release leaves a marker
// and tells the first in line, which takes the lock by its own write on that marker.
// While the marker lives, for 2 s, nobody else can get in between. The messages are
// hints: every waiter has a timer for the end of what it saw last, and needs
// nothing else to make progress. An idle waiter has no consumer and costs a read or
// two per TTL.
//
// Who can overtake, all of it harmless to exclusion: whoever comes just when a hold,
// or the marker of a release whose process died, ends by its TTL; somebody who came
// before the first ticket was stored; and the next in line if the first does not
// answer for 250 ms (it keeps its place) or if NATS knows that its process is gone
// (it stands at the end again if it was only reconnecting). Callers of a Locker with
// [WithBarging] do so on purpose.
//
// # Permissions
//
// Beside those of package bucket, a Locker needs to publish and to subscribe to
// _tenure.<bucket>.> for the requests between processes, and to answer them
// (allow_responses). A missing one is [ErrPermission] from [New].
//
// # Words
//
//   - lock: a name that at most one can hold.
//   - semaphore: a name that up to a limit of holders have at once.
//   - permit: a hold of a semaphore. Key: slot.<name>.<number>.
//   - gate: what a writer of a lock for readers and writers holds, under the key of
//     the lock. It lets no reader in; the writer waits for those who are.
//   - reader: a hold for reading, of one process or several readers in it. Key:
//     read.<name>.<id>.
//   - hold: the time in which one holder has a lock; in the API a [Lock].
//   - holder: who has it; owner: the holder's name for people, which decides nothing.
//   - TTL: how long a hold outlives its last renewal on the server.
//   - margin: by how much the holder stops believing in it before that.
//   - trust: what is left of the believing.
//   - lease: TTL, margin and the pace of renewals together.
//   - revision: the number that the bucket gave to a write; they only grow, also
//     across a bucket deleted and made anew.
//   - token, fencing token: the revision at which a hold was gained.
//   - nonce: a random text that tells one attempt to write from all others.
//   - line: those who wait for a lock, in the order in which they are served.
//   - ticket: a place in the line of a lock. Key: wait.<name>.<nonce>; of a semaphore
//     wait.<name>.slot.<nonce>.
//   - marker: what a purge leaves at a key for a while.
//   - tombstone: a record that bars a lock though nobody holds it: of a hold that was
//     revoked, or of one that rests, released before its minimum was over.
//   - process: one Locker, as others see it.
package kvlock
