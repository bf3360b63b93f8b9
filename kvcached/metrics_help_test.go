package kvcached

import (
	"regexp"
	"testing"
)

// TestHelpStandsAlone checks that no help text refers to the text of another metric.
func TestHelpStandsAlone(t *testing.T) {
	leans := regexp.MustCompile(
		`^(Their|Those|These|Of |The same|Its|It |They)|under them\b|that one (was|is) not|\b(times|blocks) that they\b`)
	for _, d := range Metrics() {
		if leans.MatchString(d.Help) {
			t.Errorf("%s: %s", d.Name, d.Help)
		}
	}
}
