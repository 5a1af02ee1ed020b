package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// A Result is what was measured under one name at one site.
type Result struct {
	Name    string
	Server  string // the site
	Figures []Figure
}

// A Figure is one number of a [Result]. Its name ends in its unit if it is no ratio
// and no count.
type Figure struct {
	Name  string
	Value float64

	// Budget is the largest value that is good, or the smallest if AtLeast is
	// set. It counts if Limited is set.
	Budget           float64
	Limited, AtLeast bool
}

// OK reports whether the figure keeps its budget.
func (f Figure) OK() bool {
	switch {
	case !f.Limited:
		return true
	case f.AtLeast:
		return f.Value >= f.Budget
	default:
		return f.Value <= f.Budget
	}
}

// String returns the figure as people read it.
func (f Figure) String() string { return fmt.Sprintf("%s %s", f.Name, number(f.Value)) }

// OK reports whether every figure keeps its budget.
func (r Result) OK() bool {
	return !slices.ContainsFunc(r.Figures, func(f Figure) bool { return !f.OK() })
}

// MarshalJSON writes one flat object. The budget of the first figure that has one is
// "budget", those of others have the name of their figure before it.
func (r Result) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	field := func(name string, value []byte) {
		if b.Len() == 0 {
			b.WriteByte('{')
		} else {
			b.WriteByte(',')
		}
		b.Write(strconv.AppendQuote(nil, name))
		b.WriteByte(':')
		b.Write(value)
	}
	field("name", strconv.AppendQuote(nil, r.Name))
	field("server", strconv.AppendQuote(nil, r.Server))
	budget := "budget"
	for _, f := range r.Figures {
		field(f.Name, number(f.Value))
		if !f.Limited {
			continue
		}
		if budget == "" {
			field(f.Name+"_budget", number(f.Budget))
			continue
		}
		field(budget, number(f.Budget))
		budget = ""
	}
	value, err := json.Marshal(r.OK())
	field("ok", value)
	b.WriteByte('}')
	return b.Bytes(), err
}

// number writes a value with as many digits as mean something.
func number(v float64) []byte {
	digits := 3
	if math.Abs(v) >= 100 {
		digits = 1
	}
	scale := math.Pow10(digits)
	return strconv.AppendFloat(nil, math.Round(v*scale)/scale, 'f', -1, 64)
}

// atMost and atLeast are figures with a budget, plain is one without.
func atMost(name string, value, budget float64) Figure {
	return Figure{Name: name, Value: value, Budget: budget, Limited: true}
}

func atLeast(name string, value, budget float64) Figure {
	return Figure{Name: name, Value: value, Budget: budget, Limited: true, AtLeast: true}
}

func plain(name string, value float64) Figure { return Figure{Name: name, Value: value} }

// samples are times that were measured one by one.
type samples []time.Duration

// at returns the smallest time that p percent of the others do not exceed.
func (s samples) at(p int) time.Duration {
	if len(s) == 0 {
		return 0
	}
	slices.Sort(s)
	return s[min(len(s)-1, len(s)*p/100)]
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// compared returns the figures of times measured in turn with a raw operation, of
// which each was worth n.
func compared(took, raw samples, n, budget float64) []Figure {
	return []Figure{
		plain("p50_us", micros(took.at(50))), plain("p99_us", micros(took.at(99))),
		plain("raw_p50_us", micros(raw.at(50))), plain("raw_p99_us", micros(raw.at(99))),
		atMost("ratio", float64(took.at(50))/(n*float64(raw.at(50))), budget),
	}
}
