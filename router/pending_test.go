package router_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"reflect"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestNoInventedSlots checks that four engines without known limits take 512 open streams, and the
// 513th too.
func TestNoInventedSlots(t *testing.T) {
	t.Parallel()
	const streams = 512
	engines := simulate(t, 4, func(c *engine.Config) { c.MaxSeqs = streams })
	// The default mode avoids an engine that it has seen slow, as on a machine that stalls.
	s := serve(t, engines, func(c *router.Config) { c.Router.Mode = "score" })
	var open []*http.Response
	for i := range streams {
		open = append(open, s.begin("/v1/chat/completions", chatBody(fmt.Sprint("question ", i), streaming),
			"x-sim-fault", "stall_after=1"))
	}
	mustAll(t, "one more", []*reply{s.chat(chatBody("hello", streaming))})
	served := map[string]int{}
	for _, resp := range open {
		served[resp.Header.Get("x-cgn-node")]++
	}
	for node, n := range served {
		if len(served) != 4 || n > 2*streams/4 {
			t.Errorf("%s has %d of %d streams, %d nodes have some", node, n, streams, len(served))
		}
	}
	if _, page := s.get(s.admin + "/debug/fleet"); bytes.Contains(page, []byte("max_concurrent")) {
		t.Errorf("a limit that nobody stated: %s", page)
	}
	for _, resp := range open {
		resp.Body.Close()
	}
	s.idle()
}

// onIts returns the explanation's entry of the node that computes or holds the prompt.
func (s *site) onIts(body string) (c candidate) {
	for _, c := range s.explain(body).Candidates {
		if c.Matched+c.Coming+c.Pending > 0 {
			return c
		}
	}
	return c
}

// hang sends a chat that its engine does not begin to answer. leave makes the client of that chat
// leave, and waits for the departure.
func (s *site) hang(body string) (leave func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		if resp, err := s.send(ctx, http.MethodPost, "/v1/chat/completions", body, "x-sim-fault", "hang"); err == nil {
			resp.Body.Close()
		}
	}()
	return func() { cancel(); <-left }
}

// TestAPromptIsHeldFromTheFirstByteOn checks that a prompt counts as pending until the first byte,
// and then as held by the node. If the client leaves before that, the prompt counts as neither.
func TestAPromptIsHeldFromTheFirstByteOn(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 3), scored)
	body := chatBody(document(1, 6000), streaming)
	leave := s.hang(body)
	blocks := s.explain(body).Blocks
	eventually(t, "it waits", func() bool {
		c := s.onIts(body)
		return c.Matched == 0 && c.Coming == blocks && c.Pending == blocks && c.Waiting == 1
	})
	leave()
	eventually(t, "nothing is left of it", func() bool { return reflect.DeepEqual(s.onIts(body), candidate{}) })
	s.begin("/v1/chat/completions", body, "x-sim-fault", "stall_after=1").Body.Close()
	eventually(t, "it is held", func() bool {
		c := s.onIts(body)
		return c.Matched == blocks && c.Coming == blocks && c.Pending == 0
	})
	s.idle()
}

// TestACallIsHeldOnceItsPromptShouldBeComputed checks an unstreamed call, whose prefill shows no
// sign before the answer ends.
func TestACallIsHeldOnceItsPromptShouldBeComputed(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 3), func(c *router.Config) {
		c.Timeouts.FirstByteCold = config.Duration(4 * time.Second) // so that the prompt should take a second
	})
	body := chatBody(document(1, 6000), plain)
	leave := s.hang(body)
	blocks := s.explain(body).Blocks
	eventually(t, "it waits", func() bool { c := s.onIts(body); return c.Pending == blocks && c.Matched == 0 })
	eventually(t, "it is held", func() bool { c := s.onIts(body); return c.Pending == 0 && c.Matched == blocks })
	leave()
	eventually(t, "nothing is left of it", func() bool { return reflect.DeepEqual(s.onIts(body), candidate{}) })
	s.idle()
}
