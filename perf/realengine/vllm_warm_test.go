package realengine

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// The conversations of TestVLLMWarm have ten times as many blocks as the caches of both servers.
const (
	talks     = 100
	talkTurns = 4
	restartAt = 2 // turn before which a server restarts
)

// TestVLLMWarm: of conversations that two servers cannot keep in their own memory, and one of which
// restarts, the servers compute at most half as many tokens with the connector and a router that
// knows the caches as without. All answers are the same.
func TestVLLMWarm(t *testing.T) {
	s := prepared(t, "vllm")
	without := s.talk(t, "without", nil)
	with := s.talk(t, "with", s.caches(t, "a", "b"))
	t.Logf("prompt tokens after the restart: %d; computed with the caches %d, without %d: %.2f", with.prompted,
		with.computed, without.computed, float64(with.computed)/float64(without.computed))
	if 2*with.computed > without.computed {
		t.Error("more than half")
	}
	differ := 0
	for i := range with.said {
		if with.said[i] != without.said[i] {
			differ++
		}
	}
	if differ > 0 {
		t.Errorf("%d of %d answers differ", differ, len(with.said))
	}
}

// talk is the result of conversations.
type talk struct {
	said     []string
	prompted int // tokens of the prompts after the restart
	computed int // of these, tokens that the servers computed
}

// talk sends conversations in turn, one request at a time, through a router to two servers, each
// with its cache, if any. The second server restarts in the middle.
func (s setup) talk(t *testing.T, name string, caches []*cache) (r talk) {
	t.Helper()
	template := filepath.Join(s.run, name+".jinja")
	if err := os.WriteFile(template, []byte(wholeChat), 0o600); err != nil {
		t.Fatal(err)
	}
	var engines []*engine
	for i := range 2 {
		flags, options := []string{"--enable-prompt-tokens-details"}, ""
		if caches != nil {
			flags, options = connected(object{"socket": caches[i].lease}), ",kv=unix://"+caches[i].grpc
		}
		e := s.engine(t, fmt.Sprint(name, "-", i), vllmFlags(s.model, append(flags, "--chat-template", template)...)...)
		e.options, e.tokenizer, e.template = options, s.model, template
		engines = append(engines, e)
	}
	for _, e := range engines {
		e.awaitReady(t)
	}
	w := s.site(t, engines...)
	var all [talks]conversation
	for k := range talkTurns {
		if k == restartAt {
			engines[1].kill()
			engines[1].start(t)
			engines[1].awaitReady(t)
			within(t, soon, "the router uses both again", func() bool { return w.eligible() == len(engines) })
			r.computed = -engines[0].source(t, "local_compute") - engines[1].source(t, "local_compute")
		}
		for i := range all {
			c, bytes := &all[i], 200
			if k == 0 {
				c.name, bytes = fmt.Sprint("talk ", i), 900
			}
			a := c.turn(t, w, k, bytes)
			r.said = append(r.said, a.text())
			if n, ok := a.counts(); ok && k >= restartAt {
				r.prompted += n.prompt
			}
		}
	}
	r.computed += engines[0].source(t, "local_compute") + engines[1].source(t, "local_compute")
	for _, e := range engines {
		e.stop(t)
	}
	w.stop(t)
	return r
}
