//go:build race

package natstest

// Race is whether this build has the race detector.
const Race = true
