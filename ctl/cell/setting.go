package cell

import (
	"fmt"
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

// Idle is the line about the settings of p that differ from their defaults and have no effect; ""
// if there are none.
func Idle(p *policy.Policy) string {
	idle := p.Idle()
	if len(idle) == 0 {
		return ""
	}
	return strings.Join(idle, ", ") + ": no effect in mode " + p.Mode.String()
}
