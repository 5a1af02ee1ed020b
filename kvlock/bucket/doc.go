// Package bucket opens the JetStream KV bucket that locks and claims live in
// and offers the few operations on it that are safe to build a lease on.
//
// # What holds
//
//   - A write carries an expectation (compare-and-swap on the last revision of
//     a key) and, for a lease, its TTL; there is no unconditional write and no
//     renewal that drops the TTL.
//   - An error says what is known: [ErrConflict], [ErrBusy] and [ErrFull] were
//     not stored; every other error of a write is to be taken as doubtful and
//     resolved by reading back ([ErrDoubt] says so of itself).
//   - Reads come from the stream's leader. That is the newest state the leader
//     knows, not proof: a leader that was cut off answers from the past until
//     it notices. Only an accepted write is linearizable.
//   - Revisions grow for ever, also when the bucket is deleted and made anew:
//     its first sequence is the creation time in microseconds.
//   - A bucket made anew is under quarantine for the largest TTL it allows,
//     since holders of a lost one may still trust their leases.
//
// # What does not hold
//
// The server's clock decides when a key with a TTL ends, so the clocks of the
// servers of a cluster must be kept together within the margin of a [Lease].
// With the server's default lazy fsync a power cut can lose an acknowledged
// write; sync_interval: always and three replicas are the cure.
//
// Package kvlock builds locks on this package and package claim builds claims;
// most programs use those.
package bucket
