//go:build !unix

package bench

import "time"

// cpuTime is not known here, and counts as none.
func cpuTime() time.Duration { return 0 }
