//go:build race

package cli_test

// race says that the program is to be built with the race detector too.
const race = true
