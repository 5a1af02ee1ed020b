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
//   - A [Guard] forgets its marks when its process ends. It guards what lives in the
//     same process, and nothing else.
//   - A [KV] guards the keys written through it. Whoever writes or deletes them
//     otherwise takes the mark away.
//   - A token belongs to the name of one lock. Do not compare tokens of different
//     locks at one mark: give each a resource of its own.
//
// The same token is the same hold and is accepted. 0 is no token and never is.
package fence
