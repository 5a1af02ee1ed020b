// Package verify proves the promises of locks and claims on a NATS that is there,
// with processes that are killed, stopped and set against each other.
//
// [Run] is the side that looks on. It starts processes, each of which calls [Child],
// and sends them signals. All of them write what they do to one pipe, a line at a
// time: the kernel puts the lines in order, so what the [witness] sees first has
// happened first, whatever the clocks and the network do. Whoever says that it has
// gained something says so after it has, and whoever leaves it says so before; so two
// that have one thing at the same time are seen.
//
// A process that was killed or stopped says nothing any more. Until the time up to
// which it last said that it trusts in its hold, nobody else may have that.
//
// Everything is kept under names of its own and removed at the end.
package verify
