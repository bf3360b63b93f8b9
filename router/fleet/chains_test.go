package fleet

import (
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/cluster"
)

// TestCascadeOfCascades checks that a cascade does not count if it names a model with a cascade of
// its own. A cascade may name its own model.
func TestCascadeOfCascades(t *testing.T) {
	of := func(chain ...string) *cluster.Model {
		return &cluster.Model{Aliases: []string{"a" + chain[0]}, Cascade: cluster.Cascade{Chain: chain}}
	}
	const itself = ", which has a cascade itself, and does not count; name models that have none"
	const unknown = ", which no node serves and which has no settings"
	for name, c := range map[string]struct {
		models   map[string]*cluster.Model
		cascades string // the models whose cascades count
		problems []string
	}{
		"its own model": {map[string]*cluster.Model{"m": of("m", "other")}, "m", nil},
		"its own alias": {map[string]*cluster.Model{"m": {Aliases: []string{"gpt"},
			Cascade: cluster.Cascade{Chain: []string{"gpt", "other"}}}}, "m", nil},
		"outer": {map[string]*cluster.Model{"x": of("y", "m"), "y": of("m", "other")}, "y",
			[]string{"model x: its cascade names y" + itself}},
		"by an alias": {map[string]*cluster.Model{"y": of("x", "m"), "z": of("ax", "m")}, "y",
			[]string{"model y: its cascade names x" + unknown, "model z: its cascade names ax" + itself}},
		"each other": {map[string]*cluster.Model{"x": of("y", "m"), "y": of("x", "m")}, "",
			[]string{"model x: its cascade names y" + itself, "model y: its cascade names x" + itself}},
		"unknown": {map[string]*cluster.Model{"x": of("m", "othr")}, "x",
			[]string{"model x: its cascade names othr" + unknown}},
		"no node": {map[string]*cluster.Model{"x": of("m", "y"), "y": {}}, "x",
			[]string{"model x: its cascade names y, which no node serves"}},
	} {
		s := build([]*Node{testNode("a", 4, "m"), testNode("b", 4, "other")}, stored(c.models))
		var counts []string
		for _, m := range s.models {
			if m.Settings != nil && len(m.Settings.Chain) > 0 {
				counts = append(counts, m.Name)
			}
		}
		if got := strings.Join(counts, " "); got != c.cascades || !slices.Equal(problemsOf(s), c.problems) {
			t.Errorf("%s: %s count, problems %q", name, got, problemsOf(s))
		}
	}
}
