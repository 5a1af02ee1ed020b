// Package plan decides which worker runs which partition. It is a pure
// function: no clock, no randomness, no network, no state between calls.
//
// # What it guarantees
//
// For every input, [Make] gives a plan that is
//
//   - the same on every machine and for every order of the partitions and
//     workers it is given. Ties are broken by a hash of the group and the name,
//     so over many groups the odd partitions land on different workers.
//   - a fixpoint: planning again from its result changes nothing, unless
//     [Policy.MaxMoves] cut it short.
//   - within the limits: no worker above its capacity, nothing new for a
//     cordoned worker, nothing for a draining one, pins before balance. What
//     fits nowhere is unassigned and says why.
//
// While all partitions weigh the same, it is also
//
//   - level: no other plan within the limits has a smaller sum of
//     load²/weight over the workers. Between workers of one weight that have
//     room, loads differ by at most one.
//   - cheap: if everything fits, it moves the fewest running partitions with
//     which that can be reached, not counting moves that the last plan has
//     begun. When one of W+1 equal workers is new, exactly
//     floor(P/(W+1)) partitions move, all to the newcomer; when one leaves,
//     nothing moves but what it had.
//
// Partitions of several weights make this bin packing: [Make] then still moves
// a partition only if that strictly lowers the sum, and, between workers of one
// weight, stops only where no single move would.
//
// # What it does not
//
// A plan is no proof of ownership. Two leaders may plan at the same time; the
// claim records decide who owns. [Make] trusts its input: who is alive, who
// owns what and which moves failed is for the caller to know.
//
// # How
//
// Every partition starts where the last plan wants it, else where it runs.
// Orphans, and what must leave its worker, go to the least loaded workers. Then
// partitions go from the most to the least loaded worker, for as long as a move
// strictly improves.
//
// Keeping what is owned and levelling the rest is the idea of Kafka's sticky
// assignor (KIP-54) and of its cooperative successor (KIP-429). Shares by
// weight are those of the Webster (Sainte-Laguë) method, since rounding each
// share up or down on its own can move partitions between two workers because a
// third one joined; a divisor method cannot.
//
// # Words
//
// A partition is one unit of work; a worker is a live session; the owner is the
// worker whose claim record stands; the target is the worker that the previous
// plan moves the partition to; an orphan has no live owner; load is the sum of
// the weights of a worker's partitions; a move takes a partition from a live
// owner to another worker.
package plan
