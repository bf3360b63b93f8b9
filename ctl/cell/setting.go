package cell

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/router/policy"
)

// zeros explains settings of 0.
var zeros = map[string]string{
	"score.weights.pending": "prefill that waits does not count",
	"score.run_delay_ms":    "waits for a CPU do not count",
	"score.retransmit_pct":  "segments sent again do not count",
	"max_queue":             "the router's own setting counts",
}

// Setting formats the value of a policy's setting, with a note on some values.
func Setting(s policy.Setting) string {
	value, note := fmt.Sprint(s.Value), ""
	if value == "0" {
		note = zeros[s.Name]
	}
	if note == "" {
		return value
	}
	return value + " (" + note + ")"
}

// unused says when settings of mode predicted have no effect.
var unused = map[string]string{
	"predicted.wait":    "while predicted.first and ttft_slo_ms are 0, except on a request with a ttft_target",
	"predicted.explore": "while predicted.learn is false",
}

// Idle is the line about the settings of p that differ from their defaults and have no effect; ""
// if there are none.
func Idle(p *policy.Policy) string {
	var of, lines []string
	for _, name := range p.Idle() {
		if when := unused[name]; when != "" && p.Mode == policy.Predicted {
			lines = append(lines, name+": no effect "+when)
		} else {
			of = append(of, name)
		}
	}
	if len(of) > 0 {
		lines = slices.Insert(lines, 0, strings.Join(of, ", ")+": no effect in mode "+p.Mode.String())
	}
	return strings.Join(lines, "; ")
}
