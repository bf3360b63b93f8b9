package kvcached

import (
	"regexp"
	"testing"
)

// TestHelpStandsAlone: what is read of one metric does not lean on another's text.
func TestHelpStandsAlone(t *testing.T) {
	leans := regexp.MustCompile(
		`^(Their|Those|These|Of |The same|Its|It |They)|under them\b|that one (was|is) not|\b(times|blocks) that they\b`)
	for _, d := range Metrics() {
		if leans.MatchString(d.Help) {
			t.Errorf("%s: %s", d.Name, d.Help)
		}
	}
}
