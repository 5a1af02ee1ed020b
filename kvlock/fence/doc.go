// Package fence refuses late writes at the resource that they go to.
//
// A lock alone does not stop a process that was paused and outlived its hold: it
// goes on as if nothing had happened. Its token gives it away. Every hold of a lock
// has a larger token than all before (kvlock.Lock.Token), so a resource that keeps
// the highest token it has seen, its mark, and refuses lower ones, lets no write of
// an ended hold through once the next hold has written, or has raised the mark.
//
// # What a guard cannot do
//
//   - A mark is raised by the first write under a new hold, not by the hold itself.
//     Until then the old holder's writes are in order and accepted. Whoever cannot
//     have that calls Raise when its hold begins.
//   - A [Guard] forgets its marks when its process ends, unless its Save keeps them.
//     It guards what lives in the same process, and nothing else.
//   - A guard knows only what goes through it. Whoever writes or deletes keys of a
//     [KV] otherwise takes the mark away, and so does a TTL of its bucket; whoever writes the tables otherwise than in
//     [SQL.Do] is not asked for a token.
//   - A token belongs to the name of one lock. Do not compare tokens of different
//     locks at one mark: give each a resource of its own, such as the lock's name.
//     Permits of a semaphore and readers have several valid tokens at once, so a mark
//     would refuse honest holders: fence each slot by a resource of its own, and
//     readers not at all.
//   - Tokens are not secrets and prove nothing. A guard is against the late, not
//     against the hostile: one invented large token locks everybody out.
//
// The same token is the same hold and is accepted. 0 is no token and never is. Marks
// stay for ever, also when what they guard is deleted.
//
// # Which guard
//
//	what is written            guard      the check and the write are one because
//	in this process            Guard      nobody else may enter meanwhile
//	a key of any KV bucket     KV         both are one value, written by compare-and-swap
//	PostgreSQL, SQLite         SQL        both are in one transaction
//	by HTTP                    Handler    requests wait for each other in one process; with several, see there
//
// What a lock's own bucket holds needs none of them.
//
// # HTTP
//
// A client sends the token with a [Transport], a [Handler] asks any of the guards
// above, and [CheckResponse] makes a [*StaleError] of a refusal again. A client sends
// a request again with the same token, never with a newer one that it did not hold
// when it decided what to write.
//
// # Databases
//
// [SQL.CreateTable] makes the table of the marks, with this statement:
//
//	CREATE TABLE IF NOT EXISTS "fence" (name TEXT NOT NULL PRIMARY KEY, token BIGINT NOT NULL)
//
// It needs no clean-up: one row per resource. A mark that is deleted is forgotten.
//
// [SQL.Do] locks the row of the mark (with SQLite the database) until its transaction
// ends. A process that is paused inside holds up the next holder meanwhile; let the
// database end such transactions (idle_in_transaction_session_timeout of PostgreSQL).
// PostgreSQL transactions are READ COMMITTED. With SQLite give the driver a busy
// timeout, so that writers wait for each other.
//
// Where the data is one row, the token may be kept in a column of it instead, with no
// help from this package. A statement that changes no row was stale, or there is no
// such row:
//
//	UPDATE accounts SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2
//
// Instead of deleting such a row mark it as deleted, or its mark is gone too.
package fence
