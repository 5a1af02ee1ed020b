//go:build !race

package natstest

// raceDetector is whether this build has the race detector.
const raceDetector = false
