//go:build race

package claim_test

// race is whether the race detector slows everything down.
const race = true
