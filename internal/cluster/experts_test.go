package cluster

import (
	"fmt"
	"strings"
	"testing"
)

func TestExpertsOfANode(t *testing.T) {
	e := Experts{"8-15", "17", "100-1000", "code", "de-en", "0"}
	for expert, want := range map[string]bool{
		"0": true, "1": false, "7": false, "8": true, "9": true, "10": true, "15": true, "16": false, "17": true,
		"99": false, "100": true, "128": true, "999": true, "1000": true, "1001": false, "2": false, "": false,
		"code": true, "cod": false, "de-en": true, "de": false, "08": false, "-8": false, "8x": false,
	} {
		if got := e.Has(expert); got != want {
			t.Errorf("hosts %q: %v", expert, got)
		}
	}
	if Experts(nil).Has("1") {
		t.Error("a node without experts hosts one")
	}
	if n := testing.AllocsPerRun(100, func() { e.Has("128") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCheckExperts(t *testing.T) {
	for _, c := range []struct {
		experts Experts
		want    string // part of the error; empty: none
	}{
		{nil, ""},
		{Experts{"0", "7", "0-127", "5-5", "9-10"}, ""},
		{Experts{"code", "de-en", "expert-7", strings.Repeat("x", maxExpertBytes)}, ""},
		{make(Experts, maxExperts+1), "65 entries; a node has at most 64, write ranges such as 0-127"},
		{Experts{"1", ""}, "an expert is empty; write"},
		{Experts{strings.Repeat("x", maxExpertBytes+1)}, "has 33 bytes; an expert has at most 32"},
		{Experts{"a b"}, `"a b" holds a space`},
		{Experts{"0-1,3"}, "a comma"},
		{Experts{"a\xff"}, "cannot be printed"},
		{Experts{"007"}, `"007" is no number and no range`},
		{Experts{"127-0"}, "with the lower number first"},
		{Experts{"10-9"}, "with the lower number first"},
		{Experts{"0-"}, "no range"}, {Experts{"-1"}, "no range"},
		{Experts{"1-2-3"}, "no range"}, {Experts{"00-9"}, "no range"},
	} {
		err := c.experts.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: %v, want %q", c.experts, err, c.want)
		}
	}
}

// TestExpertsInAValue checks that a node with invalid experts is used without experts, and that no
// agent announces them.
func TestExpertsInAValue(t *testing.T) {
	for experts, want := range map[string]int{"": 0, `,"experts":["0-127","200"]`: 2, `,"experts":["9-0"]`: 0} {
		value := fmt.Appendf(nil, `{"node_id":"n","address":"http://h:1","models":["m"]%s}`, experts)
		h, err := ParseNodeHealth("n", value)
		if err != nil || len(h.Experts) != want ||
			strings.Contains(fmt.Sprint(h.LeftOut), "experts: ") != strings.Contains(experts, "9-0") {
			t.Errorf("%s: %+v, %v", experts, h, err)
		}
		if h.Experts = (Experts{""}); h.Check() == nil {
			t.Error("an agent announces an empty expert")
		}
	}
}

// FuzzExperts checks that valid entries of untrusted values answer every question.
func FuzzExperts(f *testing.F) {
	for _, entry := range []string{"0-127", "7", "code", "de-en", "9-0", "007", "-", "18446744073709551616-99"} {
		f.Add(entry, "64")
	}
	f.Fuzz(func(t *testing.T, entry, expert string) {
		e := Experts{entry}
		has := e.Has(expert)
		if e.Check() != nil {
			return
		}
		if !e.Has(entry) {
			t.Errorf("%q does not host itself", entry)
		}
		low, high, ok := rangeOf(entry)
		if ok && !(e.Has(low) && e.Has(high)) {
			t.Errorf("%q does not host its ends", entry)
		}
		if has && !ok && entry != expert {
			t.Errorf("%q hosts %q", entry, expert)
		}
	})
}
