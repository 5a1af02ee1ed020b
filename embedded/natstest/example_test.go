package natstest_test

import (
	"errors"
	"fmt"

	"tenure/embedded/natstest"
)

// The history of a lock that does not keep its promises.
func ExampleHistory() {
	var history natstest.History

	anna := history.Begin("anna", "report", 7)
	berta := history.Begin("berta", "report", 8) // anna has not ended
	berta.Write().Accepted(100)
	anna.Write().Refused(errors.New("stale token"))
	anna.End()
	anna.Write().Accepted(101)
	berta.End()

	fmt.Println(len(history.Violations()), "violations")
	// Output:
	// 3 violations
}
