// Package bench measures locks and claims beside the raw JetStream operations that
// they are made of.
//
// Every figure of time is taken in turn with a raw guarded publish on the same
// connection, and compared with that: the ratio says what tenure adds, whatever the
// machine does meanwhile. `tenure bench` and the benchmark of this package run the
// same code.
//
// A [Run] is made of parts, such as acquire or handover, and sites: servers that it
// starts in this process, or the one that a user names. Server and clients share the
// cores of the machine, so what a part achieves in a second is less than what a
// server of its own would allow.
package bench
