package worker

import (
	"context"
	"time"
)

const (
	// killMargin is how long before the end of trust a child is killed. The
	// promise is 100 ms; the rest pays for a late timer and the kill itself.
	killMargin = 200 * time.Millisecond

	// trustLook is how often a hold that cannot be trusted is looked at again.
	trustLook = 50 * time.Millisecond
)

// A vigil watches how long a partition can be trusted on behalf of a child that
// takes a while to end.
//
// A hold is renewed long before it ends, so what remains of it goes up and down.
// It is low when renewals have failed for a while: the child is then asked to
// end, while there is still time for it. A renewal that comes after all saves
// the hold, not the child; it is started again.
type vigil struct {
	p     Partition
	grace time.Duration // how long the child may take to end
	most  time.Duration // the longest trust seen: nearly the lease
}

// left returns how long the hold can be trusted.
func (v *vigil) left() time.Duration {
	left := v.p.Remaining()
	v.most = max(v.most, left)
	return left
}

// low returns the trust at which the child is asked to end: its grace before it
// would be killed, but at most a quarter of the lease, which a healthy hold never
// comes down to.
func (v *vigil) low() time.Duration {
	return killMargin + min(v.grace, v.most/4)
}

// await waits until the hold is trusted enough to start something. It reports
// false when ctx is done or the partition drains.
func (v *vigil) await(ctx context.Context) bool {
	for v.left() <= v.low() {
		if !pause(ctx, v.p, trustLook) {
			return false
		}
	}
	return ctx.Err() == nil && !isDraining(v.p)
}
