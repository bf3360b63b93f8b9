package router_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// divideByCaches is divide for engines that hand blocks over through the caches of their hosts.
func divideByCaches(t *testing.T, prefills, decodes int) (*divided, *engine.Shelf) {
	t.Helper()
	shelf := &engine.Shelf{}
	engines := simulate(t, prefills+decodes, func(c *engine.Config) {
		c.Connector, c.Shelf = engine.ConnectorKVCached, shelf
	})
	return divideAmong(t, engines[:prefills], engines[prefills:], func(c *router.Config) {
		for i := range c.Router.Backends {
			c.Router.Backends[i] += ",connector=kvcached"
		}
		at, long := &c.Timeouts, config.Duration(10*time.Second)
		at.FirstByte, at.FirstByteCold, at.PatienceFloor, at.StallFloor = long, long, long, long
	}), shelf
}

// TestPromptIsHandedOverThroughCaches: P stores the prompt's blocks, and D takes them.
func TestPromptIsHandedOverThroughCaches(t *testing.T) {
	t.Parallel()
	d, _ := divideByCaches(t, 1, 2)
	for i, more := range []string{`,"max_tokens":8`, streaming} {
		body := chatBody(longPrompt(fmt.Sprint("request ", i)), more)
		r := d.chat(body)
		if r.status != 200 || r.err != nil || answerIn(r.body) != d.alone(t, body) {
			t.Errorf("%s: %v", more, r)
		}
		if p := r.header.Get("x-cgn-prefill-node"); p != "prefill-0" {
			t.Errorf("%s: prompt from %q", more, p)
		}
	}
	for _, e := range d.decodes {
		if s := e.Stats(); s.ComputedTokens != 0 {
			t.Errorf("a decode node computed %d prompt tokens", s.ComputedTokens)
		}
	}
	if n := d.handovers("split"); n != 2 {
		t.Errorf("%v hand-overs", n)
	}
}

// TestMishapsOfHandoversThroughCaches: the client gets the whole right answer whatever fails, and D
// waits for lost blocks no longer than its connector's bound.
func TestMishapsOfHandoversThroughCaches(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]struct {
		decodes int
		prefill *engine.Fault
		decode  *engine.Fault
		result  string // of the hand-over that fails; "": none does
		split   float64
		asked   int64 // requests to P; 0: any number
		lost    int64 // prompts whose blocks D has not found
	}{
		"P dies":                   {prefill: &engine.Fault{Reset: true}, result: "broken"},
		"P has no daemon":          {prefill: &engine.Fault{NoTransfer: true}, result: "garbled", asked: 1},
		"P's blocks never come":    {prefill: &engine.Fault{LoseBlocks: true}, split: 1, asked: 1, lost: 1},
		"D fails once":             {decode: once(engine.Fault{Status: 500}), result: "unread", asked: 1},
		"D dies before its answer": {decodes: 2, decode: once(engine.Fault{DieAfter: &zero}), split: 1, asked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, _ := divideByCaches(t, 1, max(m.decodes, 1))
			body := chatBody(longPrompt("the prompt"), streaming)
			_, decoder := d.picks(t, body)
			p := d.prefills[0]
			p.SetFault(m.prefill)
			decoder.SetFault(m.decode)
			before := had(p, chatPath)
			r := d.chat(body)
			if r.status != 200 || r.err != nil || answerIn(r.body) != d.alone(t, body) {
				t.Errorf("%v", r)
			}
			if n := int64(had(p, chatPath) - before); m.asked > 0 && n != m.asked {
				t.Errorf("P was asked %d times", n)
			}
			if n := d.handovers("split"); n != m.split {
				t.Errorf("%v hand-overs:\n%s", n, d.metrics().lines("cgn_router_handovers_total"))
			}
			if m.result != "" && d.handovers(m.result) != 1 {
				t.Errorf("not counted as %s:\n%s", m.result, d.metrics().lines("cgn_router_handovers_total"))
			}
			var lost int64
			for _, e := range d.decodes {
				lost += e.Stats().LostBlocks
			}
			if lost != m.lost {
				t.Errorf("%d prompts were waited for in vain", lost)
			}
		})
	}
}

// TestBlocksInCachesAreEvicted: D computes a prompt whose blocks went between its two parts.
func TestBlocksInCachesAreEvicted(t *testing.T) {
	t.Parallel()
	d, shelf := divideByCaches(t, 1, 1)
	d.decodes[0].SetFault(&engine.Fault{Slow: engine.Duration(time.Second), Count: 1})
	body := chatBody(longPrompt("the prompt"), streaming)
	done := make(chan *reply)
	go func() { done <- d.chat(body) }()
	eventually(t, "D is asked", func() bool { return had(d.decodes[0], chatPath) == 1 })
	shelf.Clear()
	if r := <-done; r.status != 200 || r.err != nil || answerIn(r.body) != d.alone(t, body) {
		t.Errorf("%v", r)
	}
	if s := d.decodes[0].Stats(); s.ComputedTokens == 0 {
		t.Errorf("D has computed nothing: %+v", s)
	}
	if n := d.handovers("split"); n != 1 {
		t.Errorf("%v hand-overs", n)
	}
}
