package plan

import (
	"cmp"
	"slices"
)

// hash is FNV-1a over the group and a name, mixed so that names that differ in
// the last digit only land far apart. It must be the same in every process and
// release, which rules out hash/maphash; a change needs a new [Version].
func hash(group, name string) uint64 {
	const prime = 1099511628211
	h := uint64(14695981039346656037)
	for i := range len(group) {
		h = (h ^ uint64(group[i])) * prime
	}
	h *= prime // a zero byte between the two
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * prime
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// A place is an element's hash and its index in the input.
type place struct {
	hash  uint64
	index int
}

// partitionOrder returns the indexes of the partitions in the order in which
// they are looked at.
func partitionOrder(in *Input) []place {
	order := make([]place, len(in.Partitions))
	for i := range order {
		order[i] = place{hash(in.Group, in.Partitions[i].Name), i}
	}
	slices.SortFunc(order, func(a, b place) int {
		switch { // half of the planner's time goes here: no calls
		case a.hash < b.hash:
			return -1
		case a.hash > b.hash:
			return 1
		}
		return cmp.Compare(in.Partitions[a.index].Name, in.Partitions[b.index].Name)
	})
	return order
}

// workerOrder returns the indexes of the workers in the order that breaks ties.
func workerOrder(in *Input) []place {
	order := make([]place, len(in.Workers))
	for i := range order {
		order[i] = place{hash(in.Group, in.Workers[i].ID), i}
	}
	slices.SortFunc(order, func(a, b place) int {
		x, y := &in.Workers[a.index], &in.Workers[b.index]
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(x.ID, y.ID), cmp.Compare(x.Epoch, y.Epoch))
	})
	return order
}
