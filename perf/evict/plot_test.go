package evict

import (
	"strings"
	"testing"
)

func TestPlot(t *testing.T) {
	text := Plot([]Result{{Policy: "x", Share: .01, Prefix: .1}, {Policy: "x", Share: .4, Prefix: .5},
		{Policy: "y", Share: .01, Prefix: .1}})
	for _, want := range []string{"0.50 |", "1%", "40%", "a x", "b y", "|*"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if Plot(nil) != "" {
		t.Error("something of nothing")
	}
}
