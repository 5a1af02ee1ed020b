package claim

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"tenure/claim/plan"
)

// maxLog is how many earlier owners a claim record names. It travels in every
// hand-over: eight take about half a kilobyte.
const maxLog = 8

// How an owner's claim came to its end.
const (
	EndedMoved       = "moved"       // handed to the next owner
	EndedReleased    = "released"    // given back
	EndedFailed      = "failed"      // given back because its handler made no progress
	EndedQuarantined = "quarantined" // given back because its handler failed too often
	EndedDied        = "died"        // its owner's session was proven dead
)

// past is an earlier owner of a partition.
type past struct {
	Owner string      `json:"o"`
	Token uint64      `json:"t"`
	At    int64       `json:"at"`          // since when it had it, in milliseconds since 1970
	Until int64       `json:"u"`           // until when
	Why   plan.Reason `json:"w,omitempty"` // why it got it
	End   string      `json:"e"`           // how that ended
}

// successor returns the record that follows r, which stands at the given
// revision, as r's history goes on: the owner changes now. A list of maxLog past
// owners loses its oldest.
func (r record) successor(revision uint64, end string, why plan.Reason) record {
	now := time.Now().UnixMilli()
	next := record{At: now, Why: why, Log: r.Log}
	if r.Owner != "" {
		keep := r.Log[max(0, len(r.Log)+1-maxLog):]
		next.Log = append(append(make([]past, 0, len(keep)+1), keep...),
			past{Owner: r.Owner, Token: r.token(revision), At: r.At, Until: now, Why: r.Why, End: end})
	}
	return next
}

// maxMoves is how many moves a [Status] names.
const maxMoves = 20

// moves returns the last changes of owners that the claims remember.
func (r *reader) moves() []Move {
	newest := func(a, b Move) int {
		return cmp.Or(b.At.Compare(a.At), strings.Compare(a.Partition, b.Partition))
	}
	last := make([]Move, 0, maxMoves+1)
	add := func(m Move) {
		if len(last) == maxMoves && newest(m, last[maxMoves-1]) > 0 {
			return
		}
		i, _ := slices.BinarySearchFunc(last, m, newest)
		last = slices.Insert(last, i, m)
		last = last[:min(len(last), maxMoves)]
	}
	for _, name := range r.names {
		c := r.claims[name]
		from, end := "", ""
		for _, p := range c.Log {
			if p.At != 0 {
				add(Move{Partition: name, From: from, To: p.Owner, Token: p.Token, At: millis(p.At), Why: p.Why.String()})
			}
			from, end = p.Owner, p.End
		}
		switch {
		case c.At == 0:
		case c.Owner != "":
			add(Move{Partition: name, From: from, To: c.Owner, Token: c.token(c.revision), At: millis(c.At), Why: c.Why.String()})
		case from != "":
			add(Move{Partition: name, From: from, At: millis(c.At), Why: end})
		}
	}
	return last
}
