package leg

import (
	"encoding/json"
	"math"
	"strings"
	"time"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/policy"
)

// logPick logs the pick that has just ended with at and err: the line of each candidate, and the
// reason for each node that was left out. The record has the measures of the pick itself.
func (l *Leg) logPick(at int, err *apierror.Error, now time.Time) {
	var because policy.Explanation
	l.pick(now, &because)
	able := l.picks.able
	candidates, removed := lines{}, lines{}
	for i, n := range l.pool.members {
		row := ExplainedNode{Node: n.node.ID, Rank: n.number()}
		if len(able) == 0 || int(able[0]) != i {
			row.filtered(l, i, now)
			removed = append(removed, row.removal())
			continue
		}
		t := &because.Terms[len(l.picks.able)-len(able)]
		able = able[1:]
		if t.Eligible {
			candidates = append(candidates, t.Line(row.Title()))
		} else {
			row.Reason = t.Reason
			removed = append(removed, row.removal())
		}
	}
	args := []any{"request", string(l.Request.ID), "model", l.model.name, "mode", l.picks.policy.Mode.String(),
		"why", because.Why, "candidates", candidates, "removed", removed}
	if err != nil {
		l.d.log.Debug("no node picked", append(args, "error", err.Message)...)
		return
	}
	n := l.pool.members[at]
	if args = append(args, "node", n.node.ID); n.rank.Count > 1 {
		args = append(args, "dp_rank", n.rank.Index)
	}
	l.d.log.Debug("node picked", args...)
}

// logAnswer logs what mode predicted expected of an answer, and what came, in ms and tokens. Times
// count from the sending of the request to the node.
func (l *Leg) logAnswer(a *attempt) {
	f, r := &a.forecast, &l.Reading
	args := []any{"request", string(l.Request.ID), "model", l.model.name, "node", a.member.node.ID,
		"expected_ttft_ms", ms(f.ttft), "ttft_ms", ms(f.took), "expected_wait_ms", ms(f.wait),
		"expected_itl_ms", ms(f.step)}
	if r.Events > 1 {
		args = append(args, "itl_ms", ms(r.MeanGap().Seconds()))
	}
	args = append(args, "expected_tokens", tenths(f.output))
	if r.Usage.HasCompletion {
		args = append(args, "tokens", r.Usage.Completion)
	}
	l.d.log.Debug("answer compared with its forecast", args...)
}

// ms returns seconds as milliseconds with one decimal.
func ms(seconds float64) float64 { return tenths(seconds * 1000) }

// tenths rounds v to one decimal.
func tenths(v float64) float64 { return math.Round(v*10) / 10 }

// removal says in one line why the node is no candidate.
func (e *ExplainedNode) removal() string {
	if e.Filter == "" || strings.HasPrefix(e.Reason, e.Filter+": ") {
		return e.Title() + ": " + e.Reason
	}
	return e.Title() + ": " + e.Filter + ", " + e.Reason
}

// lines is a list of lines. The log's text format joins them, and its JSON format has an array.
type lines []string

// MarshalText joins the lines.
func (l lines) MarshalText() ([]byte, error) { return []byte(strings.Join(l, "; ")), nil }

// MarshalJSON returns an array.
func (l lines) MarshalJSON() ([]byte, error) { return json.Marshal([]string(l)) }
