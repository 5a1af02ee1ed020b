package claim_test

import (
	"bytes"
	"errors"
	"testing"

	"tenure/claim"
)

// Settings of the first version are read, and a new group is written as such.
func TestSettingsOfTheFirstVersionAreReadAndWritten(t *testing.T) {
	for _, tt := range []struct {
		names []string
		want  string
	}{
		{claim.Numbered(3), `{"v":1,"count":3}`},
		{[]string{"eu", "us"}, `{"v":1,"names":["eu","us"]}`},
	} {
		have, err := claim.NewSettings(tt.names...)
		if err != nil || string(have) != tt.want {
			t.Errorf("settings = %s, %v, want %s", have, err, tt.want)
		}
		if _, err := claim.ReadSettings(have, 7); err != nil {
			t.Errorf("settings %s: %v, want nil", have, err)
		}
	}
	have, err := claim.ReadSettings([]byte(`{"v":1,"count":3}`), 7)
	if want := `{"v":2,"count":3,"layout":7}`; err != nil || string(have) != want {
		t.Errorf("changed settings = %s, %v, want %s", have, err, want)
	}
}

func TestSettingsThatCannotBeAreTypedErrors(t *testing.T) {
	for _, tt := range []struct{ value, want string }{
		{``, `settings in key "group.g": have unexpected end of JSON input, want an object of JSON: group cannot be used: bad settings`},
		{`{"v":3,"count":1}`, `settings in key "group.g": have version 3, want version 1 to 2: group cannot be used: bad settings`},
		{`{"v":0,"count":1}`, `settings in key "group.g": have version 0, want version 1 to 2: group cannot be used: bad settings`},
		{`{"v":2,"count":"x"}`, `settings in key "group.g": have json: cannot unmarshal string into Go struct field settings.count of type int, want version 2: group cannot be used: bad settings`},
		{`{"v":2}`, `settings in key "group.g": partitions: have 0, want 1 to 1000000: group cannot be used`},
		{`{"v":2,"count":1,"layout":9}`, `settings in key "group.g": have layout 9, want at most its own revision, 7: group cannot be used: bad settings`},
		{`{"v":2,"count":1,"paused":["b","a"]}`, `settings in key "group.g": paused: have "a" after "b", want names in order, each once: group cannot be used: bad settings`},
		{`{"v":2,"count":1,"weights":{"0":0}}`, `settings in key "group.g": weight of "0": have 0, want 1 to 64: group cannot be used: bad settings`},
		{`{"v":2,"count":1,"pins":{"0":""}}`, `settings in key "group.g": pin of "0": have "", want the id of a worker: group cannot be used: bad settings`},
		{`{"v":2,"count":1,"gates":[{"count":-1,"to":2}]}`, `settings in key "group.g": resize: have -1 to 2, want 1 to 1000000 each: group cannot be used: bad settings`},
		{`{"v":2,"count":1,"policy":{"hysteresis":-1}}`, `settings in key "group.g": policy: hysteresis: have -1, want 0 or more: group cannot be used: bad settings`},
	} {
		_, err := claim.ReadSettings([]byte(tt.value), 7)
		if !errors.Is(err, claim.ErrGroup) || err.Error() != tt.want {
			t.Errorf("settings %s: %v, want %s", tt.value, err, tt.want)
		}
	}
}

// Whatever stands in the bucket is an error that matches one of ours, or comes back
// as it was read.
func FuzzSettings(f *testing.F) {
	for _, seed := range []string{
		`{"v":1,"count":3}`, `{"v":1,"names":["eu","us"]}`,
		`{"v":2,"count":4,"layout":3,"nonce":"n","prev":"p","pins":{"1":"a"},"moves":{"2":{"to":"b"}},"weights":{"3":4},"paused":["0"],"cordoned":["c"],"drained":["d"],"gates":[{"count":2,"to":4},{"since":3,"parents":{"x":["y"]}}],"policy":{"zones":"stay","cool_down":1000000000}}`,
	} {
		f.Add([]byte(seed), uint64(7))
	}
	f.Fuzz(func(t *testing.T, value []byte, revision uint64) {
		once, err := claim.ReadSettings(value, revision)
		if err != nil {
			if !errors.Is(err, claim.ErrGroup) && !errors.Is(err, claim.ErrName) {
				t.Fatalf("error %v matches nothing", err)
			}
			return
		}
		twice, err := claim.ReadSettings(once, revision)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("settings %s came back as %s, %v", once, twice, err)
		}
	})
}
