package router_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestBlocksReadTooLate: an engine that begins after the lease reads other blocks and answers with
// 200, as vLLM does. The client does not get that answer, but one that takes long and has begun in
// time.
func TestBlocksReadTooLate(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	long := `,"max_tokens":40,"min_tokens":40`
	for name, test := range map[string]struct {
		more string
		late bool
		step time.Duration
	}{
		"late":           {more: `,"max_tokens":8`, late: true},
		"late, stream":   {more: streaming, late: true},
		"a long answer":  {more: long, step: 120 * time.Millisecond},
		"a long stream":  {more: long + `,"stream":true`, step: 120 * time.Millisecond},
		"a short answer": {more: streaming},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engines := simulate(t, 2, handing, func(c *engine.Config) {
				c.BlockLease, c.LoadFailure = lease, engine.LoadStale
				if test.step > 0 {
					c.DecodeStep = test.step
				}
			})
			d := divideAmong(t, engines[:1], engines[1:], func(c *router.Config) {
				c.Router.Disagg.BlockLease = config.Duration(lease)
			})
			result := "split"
			if test.late {
				result = "unread"
				d.decodes[0].SetFault(once(engine.Fault{Slow: engine.Duration(lease + time.Second)}))
			}
			body := chatBody(longPrompt("the prompt"), test.more)
			began := time.Now()
			r := d.chat(body)
			if r.status != 200 || r.err != nil || answerIn(r.body) != d.alone(t, body) {
				t.Errorf("%v", r)
			}
			if took := time.Since(began); strings.Contains(name, "long") && took < lease {
				t.Errorf("the answer took only %v", took)
			}
			if d.handovers(result) != 1 {
				t.Errorf("not counted as %s:\n%s", result, d.metrics().lines("cgn_router_handovers_total"))
			}
			if s := d.decodes[0].Stats(); s.WrongBlocks != 0 != test.late {
				t.Errorf("%d answers from other blocks", s.WrongBlocks)
			}
			salted := slices.ContainsFunc(d.decodes[0].Requests(), func(r engine.Request) bool {
				return strings.Contains(string(r.Body), `"cache_salt":"cgn-`)
			})
			if salted != test.late {
				t.Errorf("a salt was sent: %v", salted)
			}
			d.idle()
			d.nothingLeft(t)
		})
	}
}
