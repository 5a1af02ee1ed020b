package plan_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tenure/claim/plan"
)

// small is a plan that uses every field.
func small() *plan.Plan {
	return &plan.Plan{
		Format: plan.Format, Version: plan.Version, View: 1796000000000110, Settings: 1796000000000050,
		Leader: "a", LeaderEpoch: 1796000000000100,
		Workers: []plan.WorkerRef{{ID: "a", Epoch: 1796000000000100}, {ID: "b", Epoch: 1796000000000105}},
		Assign:  []int{0, 1, plan.None},
		Why:     []plan.Reason{plan.Kept, plan.Balanced, plan.Paused},
	}
}

func TestStoredFormIsThis(t *testing.T) {
	got, err := small().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	want := `{"format":1,"planner":1,"view":1796000000000110,"settings":1796000000000050,` +
		`"leader":"a","leader_epoch":1796000000000100,"partitions":3,` +
		`"workers":[{"id":"a","epoch":1796000000000100},{"id":"b","epoch":1796000000000105}],` +
		`"assign":"AQIA","why":"AAIL"}`
	if string(got) != want {
		t.Errorf("Marshal = %s, want %s", got, want)
	}
	p, err := plan.Parse(got)
	if err != nil || !reflect.DeepEqual(p, small()) {
		t.Errorf("Parse = %+v, %v, want %+v", p, err, small())
	}
}

func TestWhatIsStoredComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := group(t)
		p := plan.NewPlan(in, plan.Make(in))
		p.View, p.Settings, p.LeaderEpoch = rapid.Uint64().Draw(t, "view"), rapid.Uint64().Draw(t, "settings"), 7
		p.Leader = rapid.StringN(1, 5, -1).Draw(t, "leader")
		data, err := p.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := plan.Parse(data); err != nil || !reflect.DeepEqual(back, p) {
			t.Fatalf("Parse = %+v, %v, want %+v", back, err, p)
		}
	})
}

func TestTenThousandPartitionsTakeThirtyKilobytes(t *testing.T) {
	in := settled(10_000, 100)
	p := plan.NewPlan(in, plan.Make(in))
	p.Leader = "worker0"
	data, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(data); n < 20_000 || n > 40_000 {
		t.Errorf("Marshal = %d bytes, want 20,000 to 40,000", n)
	}
}

// C29: a plan of a later planner is read, so that a lower version sees it and
// does not publish.
func TestPlanOfALaterPlannerIsRead(t *testing.T) {
	p, err := plan.Parse([]byte(`{"format":1,"planner":9,"new":{},"leader":"a","partitions":1,` +
		`"workers":[{"id":"a"}],"assign":"AQ==","why":"yA=="}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(p.Version, p.Assign, p.Why); got != "9 [0] [reason 200]" {
		t.Errorf("Version, Assign, Why = %s, want 9 [0] [reason 200]", got)
	}
}

func TestMalformedPlansAreTypedErrors(t *testing.T) {
	valid, err := small().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	with := func(field string, value any) string { // valid but for one field
		var fields map[string]any
		if err := json.Unmarshal(valid, &fields); err != nil {
			t.Fatal(err)
		}
		fields[field] = value
		data, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	tests := []struct {
		name string
		data string
		kind error
		want string
	}{
		{"nothing", "", plan.ErrFormat, "have unexpected end of JSON input, want a plan as JSON"},
		{"no JSON", "\x00\xff", plan.ErrFormat, `have invalid character '\x00' looking for beginning of value, want a plan as JSON`},
		{"no object", "[]", plan.ErrFormat, "have json: cannot unmarshal array into Go value of type plan.header, want a plan as JSON"},
		{"null", "null", plan.ErrFormat, "format: have 0, want at least 1"},
		{"no format", "{}", plan.ErrFormat, "format: have 0, want at least 1"},
		{"newer format", with("format", 2), plan.ErrNewer, "format: have 2, want at most 1"},
		{"newer format of other types", `{"format":7,"workers":"?"}`, plan.ErrNewer, "format: have 7, want at most 1"},
		{"two objects", string(valid) + "{}", plan.ErrFormat, "have invalid character '{' after top-level value, want a plan as JSON"},
		{"cut off", string(valid[:len(valid)-9]), plan.ErrFormat, "have unexpected end of JSON input, want a plan as JSON"},
		{"too long", strings.Repeat(" ", plan.MaxSize+1), plan.ErrFormat, "have 8388609 bytes, want at most 8388608 bytes"},
		{"no planner", with("planner", 0), plan.ErrFormat, "planner: have 0, want at least 1"},
		{"no leader", with("leader", ""), plan.ErrFormat, "leader: have none, want the ID of a worker"},
		{"partitions below zero", with("partitions", -1), plan.ErrFormat, "partitions: have -1, want 0 to 1048576"},
		{"too many partitions", with("partitions", 1<<30), plan.ErrFormat, "partitions: have 1073741824, want 0 to 1048576"},
		{"more partitions than reasons", with("partitions", 4), plan.ErrFormat, "why: have 3, want 4 reasons"},
		{"more reasons than partitions", with("why", "AAILAA=="), plan.ErrFormat, "why: have 4, want 3 reasons"},
		{"fewer bytes than partitions", with("assign", "AQI="), plan.ErrFormat, "assign: have 2 bytes, want 3 partitions"},
		{"fewer numbers than bytes", with("assign", "AYGB"), plan.ErrFormat, "assign: have 1, then no number, want 3 partitions"},
		{"too great a number", with("assign", "gICAgICAgICAgAEAAA=="), plan.ErrFormat, "assign: have 0, then no number, want 3 partitions"},
		{"more bytes than partitions", with("assign", "AQIAAA=="), plan.ErrFormat, "assign: have 1 more bytes, want 3 partitions"},
		{"no such worker", with("assign", "AQID"), plan.ErrFormat, "assign: have 2 for partition 2, want a worker of 2, or -1 for none"},
		{"no base64", with("assign", "?"), plan.ErrFormat, "have illegal base64 data at input byte 0, want a plan as JSON"},
		{"worker without ID", with("workers", []any{map[string]any{"epoch": 1}}), plan.ErrFormat, "workers: have none for number 0, want an ID for each"},
		{"worker twice", with("workers", []any{map[string]any{"id": "a"}, map[string]any{"id": "a"}}), plan.ErrFormat, `workers: have "a" again, want each ID once`},
		{"negative epoch", with("leader_epoch", -1), plan.ErrFormat, "have json: cannot unmarshal number -1 into Go struct field stored.leader_epoch of type uint64, want a plan as JSON"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := plan.Parse([]byte(tt.data))
			if p != nil || err == nil || err.Error() != tt.kind.Error()+": "+tt.want {
				t.Errorf("Parse = %v, %v, want %v: %s", p, err, tt.kind, tt.want)
			}
			if _, ok := errors.AsType[*plan.FormatError](err); !ok || !errors.Is(err, tt.kind) {
				t.Errorf("Parse = %T, want a *FormatError that matches %v", err, tt.kind)
			}
		})
	}
}

func TestMarshalRefusesWhatParseWouldRefuse(t *testing.T) {
	tests := []struct {
		name   string
		change func(*plan.Plan)
		want   string
	}{
		{"other format", func(p *plan.Plan) { p.Format = 2 }, "format: have 2, want 1"},
		{"no leader", func(p *plan.Plan) { p.Leader = "" }, "leader: have none, want the ID of a worker"},
		{"leader", func(p *plan.Plan) { p.Leader = "\xff" }, `leader: have "\xff", want an ID in UTF-8`},
		{"worker ID", func(p *plan.Plan) { p.Workers[0].ID = "\xff" }, `workers: have "\xff", want IDs in UTF-8`},
		{"reasons", func(p *plan.Plan) { p.Why = p.Why[1:] }, "why: have 2, want 3 reasons"},
		{"worker", func(p *plan.Plan) { p.Assign[0] = 2 }, "assign: have 2 for partition 0, want a worker of 2, or -1 for none"},
		{"below none", func(p *plan.Plan) { p.Assign[0] = -2 }, "assign: have -2 for partition 0, want a worker of 2, or -1 for none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := small()
			tt.change(p)
			if _, err := p.Marshal(); !errors.Is(err, plan.ErrFormat) || err.Error() != plan.ErrFormat.Error()+": "+tt.want {
				t.Errorf("Marshal = %v, want %s", err, tt.want)
			}
		})
	}
}

// Whatever the bytes: no panic, a typed error or a plan that can be stored again.
func FuzzParse(f *testing.F) {
	valid, err := small().Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(valid)
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"format":1,"planner":1,"leader":"a","partitions":2,"workers":[{"id":"a"}],"assign":"gAAB","why":"AAA="}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := plan.Parse(data)
		if err != nil {
			if _, ok := errors.AsType[*plan.FormatError](err); !ok || p != nil {
				t.Fatalf("Parse = %v, %T, want no plan and a *FormatError", p, err)
			}
			return
		}
		again, err := p.Marshal()
		if err != nil {
			t.Fatalf("Marshal = %v after Parse, want none", err)
		}
		if back, err := plan.Parse(again); err != nil || !reflect.DeepEqual(back, p) {
			t.Fatalf("Parse = %+v, %v, want %+v", back, err, p)
		}
	})
}
