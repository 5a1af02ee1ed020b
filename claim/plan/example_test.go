package plan_test

import (
	"fmt"

	"tenure/claim/plan"
)

// Worker c joins a group of two. It gets its share, and nothing else moves.
func ExampleMake() {
	in := plan.Input{
		Group: "orders",
		Partitions: []plan.Partition{
			{Name: "0", Owner: 0, Target: plan.None},
			{Name: "1", Owner: 1, Target: plan.None},
			{Name: "2", Owner: 0, Target: plan.None},
			{Name: "3", Owner: 1, Target: plan.None},
		},
		Workers: []plan.Worker{{ID: "a"}, {ID: "b"}, {ID: "c"}},
	}
	r := plan.Make(in)
	for i, w := range r.Assign {
		fmt.Println(in.Partitions[i].Name, in.Workers[w].ID, r.Reason[i])
	}
	fmt.Println("moves:", r.Moves)
	// Output:
	// 0 a kept
	// 1 c balanced: another worker had too little
	// 2 a kept
	// 3 b kept
	// moves: 1
}

// The leader stores its plan; every worker reads it.
func ExamplePlan_Marshal() {
	in := plan.Input{
		Group:      "orders",
		Partitions: []plan.Partition{{Name: "0", Owner: plan.None, Target: plan.None}},
		Workers:    []plan.Worker{{ID: "a", Epoch: 41}},
	}
	p := plan.NewPlan(in, plan.Make(in))
	p.Leader, p.LeaderEpoch, p.View, p.Settings = "a", 41, 57, 12
	data, err := p.Marshal()
	fmt.Println(string(data), err)
	// Output:
	// {"format":1,"planner":1,"view":57,"settings":12,"leader":"a","leader_epoch":41,"partitions":1,"workers":[{"id":"a","epoch":41}],"assign":"AQ==","why":"AQ=="} <nil>
}
