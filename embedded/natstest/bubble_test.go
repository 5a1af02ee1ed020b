package natstest_test

import (
	"sync"
	"testing"
	"time"

	"tenure/embedded/natstest"
)

// With the race detector and more than one thread this crashes the process,
// usually within a tenth of a second.
func TestBubbleSurvivesTimersThatAreDueAtOnce(t *testing.T) {
	natstest.Bubble(t, func(*testing.T) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 10_000 {
					<-time.After(0)
				}
			})
		}
		wg.Wait()
	})
}
