// Model checks the protocols of tenure: each case is a protocol within small bounds, with
// its rules, or with one rule switched off. With the rules it must hold; without one the
// checker must find how a promise breaks.
//
//	go run .                    every case
//	go run . -short             those of less than half a million states
//	go run . -only line/        those whose name contains the text
//	go run . -only naive -trace with the shortest counterexample
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

// A testcase is a model and what is expected of it.
type testcase struct {
	name  string
	holds bool
	large bool // not in the short form
	run   func() result
}

// holds is the case of a model whose promises must hold.
func holds[S comparable](name string, m model[S]) testcase {
	return testcase{name: name, holds: true, run: func() result { return check(m) }}
}

// breaks is the case of a model that lacks a rule: one promise must break.
func breaks[S comparable](name string, m model[S]) testcase {
	return testcase{name: name, run: func() result { return check(m) }}
}

// inLong makes a case one of the long form.
func (c testcase) inLong() testcase {
	c.large = true
	return c
}

func main() {
	only := flag.String("only", "", "only the cases whose name contains `TEXT`")
	trace := flag.Bool("trace", false, "print the counterexamples")
	short := flag.Bool("short", false, "only the cases of less than half a million states")
	flag.Parse()

	wrong, ran, states := 0, 0, 0
	for _, group := range [][]testcase{leaseCases(), lineCases(), slotCases(), rwCases(), claimCases(), chainCases(), planCases()} {
		for _, c := range group {
			if c.large && *short || !strings.Contains(c.name, *only) {
				continue
			}
			r := c.run()
			ran, states = ran+1, states+r.states
			outcome := "holds"
			switch {
			case r.violation != "":
				outcome = "breaks: " + r.violation
			case r.bounded:
				outcome = "holds as far as it was searched"
			}
			verdict := "ok   "
			if (r.violation == "") != c.holds {
				verdict = "WRONG"
				wrong++
			}
			fmt.Printf("%s %-78s %9d states %5.1fs  %s\n", verdict, c.name, r.states, r.took.Seconds(), outcome)
			if *trace && r.violation != "" {
				fmt.Println("      " + strings.Join(r.trace, "\n      "))
			}
		}
	}
	fmt.Printf("%d cases, %d states, %d wrong\n", ran, states, wrong)
	if wrong > 0 || ran == 0 {
		os.Exit(1)
	}
}
