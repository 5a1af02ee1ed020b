package verify_test

import (
	"slices"
	"strings"
	"testing"

	"tenure/worker/verify"
)

func TestWitnessSeesWhatMustNotHappen(t *testing.T) {
	const second = "000000000" // behind a number of seconds
	tests := []struct {
		name     string
		lines    []string
		overlaps int
		wrong    []string
	}{
		{"one after the other", []string{
			`{"what":"gained","who":"a","thing":"x","token":1}`,
			`{"what":"ended","who":"a","thing":"x","token":1}`,
			`{"what":"gained","who":"b","thing":"x","token":2}`,
		}, 0, nil},
		{"two things at the same time", []string{
			`{"what":"gained","who":"a","thing":"x","token":1}`,
			`{"what":"gained","who":"a","thing":"y","token":1}`,
		}, 0, nil},
		{"two at the same time", []string{
			`{"what":"gained","who":"a","thing":"x","token":1}`,
			`{"what":"gained","who":"b","thing":"x","token":2}`,
		}, 1, []string{"b got x under token 2 while a has it under 1"}},
		{"after a crash, when trust is over", []string{
			`{"what":"gained","who":"a","thing":"x","token":1}`,
			`{"what":"trusts","who":"a","thing":"x","token":1,"until":5` + second + `}`,
			`killed a`,
			`{"what":"gained","who":"b","thing":"x","token":2,"at":6` + second + `}`,
		}, 0, nil},
		{"after a crash, before trust is over", []string{
			`{"what":"gained","who":"a","thing":"x","token":1}`,
			`{"what":"trusts","who":"a","thing":"x","token":1,"until":5` + second + `}`,
			`killed a`,
			`{"what":"gained","who":"b","thing":"x","token":2,"at":4` + second + `}`,
		}, 1, []string{"b got x 1s before the trust of a ended, which was killed"}},
		{"one that was taken from goes on", []string{
			`{"what":"gained","who":"a","thing":"x","token":1}`,
			`{"what":"ended","who":"a","thing":"x","token":1}`,
			`{"what":"gained","who":"b","thing":"x","token":2,"at":4` + second + `}`,
			`{"what":"trusts","who":"a","thing":"x","token":1,"until":6` + second + `}`,
		}, 1, []string{"a trusts in x for another 2s after b got it"}},
		{"what is said late", []string{
			`{"what":"gained","who":"a","thing":"x","token":1}`,
			`{"what":"ended","who":"a","thing":"x","token":1}`,
			`{"what":"gained","who":"b","thing":"x","token":2,"at":4` + second + `}`,
			`{"what":"trusts","who":"a","thing":"x","token":1,"until":3` + second + `}`,
		}, 0, nil},
		{"a token twice", []string{
			`{"what":"gained","who":"a","thing":"x","token":7}`,
			`{"what":"ended","who":"a","thing":"x","token":7}`,
			`{"what":"gained","who":"b","thing":"x","token":7}`,
		}, 0, []string{"b got x under token 7 after 7: tokens must rise"}},
		{"no token", []string{`{"what":"gained","who":"a","thing":"x"}`}, 0, []string{"a got x under token 0 after 0: tokens must rise"}},
		{"a token that changes", []string{
			`{"what":"gained","who":"a","thing":"x","token":1}`,
			`{"what":"trusts","who":"a","thing":"x","token":2,"until":5` + second + `}`,
		}, 0, []string{"a has x under token 1, and then under 2: a token must not change"}},
	}
	for _, tt := range tests {
		t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) {
			overlaps, wrong := verify.Judge(tt.lines...)
			if overlaps != tt.overlaps || !slices.Equal(wrong, tt.wrong) {
				t.Errorf("Judge = %d, %q, want %d, %q", overlaps, wrong, tt.overlaps, tt.wrong)
			}
		})
	}
}
