package router_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestSoakOfHandovers sends requests to nodes of both roles while nodes die and return, and clients
// leave, at random moments. SOAK_HANDOVERS is its duration, 2 s by default. An answer is right or an
// error, and at the end nothing is left of any request.
func TestSoakOfHandovers(t *testing.T) {
	t.Parallel()
	lasts := 2 * time.Second
	if text := os.Getenv("SOAK_HANDOVERS"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	d := divide(t, 2, 3)
	s := &soak{divided: d, until: time.Now().Add(lasts), prompts: make([]string, 24), want: make([]string, 24)}
	for i := range s.prompts {
		s.prompts[i] = longPrompt(fmt.Sprint("prompt ", i))
		if i%3 == 0 {
			s.prompts[i] = fmt.Sprint("a short prompt ", i)
		}
		s.want[i] = d.alone(t, chatBody(s.prompts[i], streaming))
	}
	var all sync.WaitGroup
	for worker := range 12 {
		all.Go(func() { s.ask(rand.New(rand.NewPCG(7, uint64(worker)))) })
	}
	all.Go(func() { s.kill(rand.New(rand.NewPCG(8, 8))) })
	all.Wait()
	d.idle()
	d.nothingLeft(t)
	d.client.CloseIdleConnections()
	t.Logf("%d right, %d errors, %d left; hand-overs: %s", s.right.Load(), s.failed.Load(), s.left.Load(),
		strings.Join(d.metrics().lines("cgn_router_handovers_total"), " "))
	if s.right.Load() == 0 {
		t.Error("no answer is right")
	}
	for _, e := range slices.Concat(d.prefills, d.decodes) {
		if n := e.Stats().WrongBlocks; n != 0 {
			t.Errorf("%d answers from another prompt's blocks", n)
		}
	}
}

// soak is the traffic of a soak.
type soak struct {
	*divided
	until               time.Time
	prompts, want       []string
	right, failed, left atomic.Int64
}

// ask sends one request after the other, and leaves some of them.
func (s *soak) ask(rng *rand.Rand) {
	for time.Now().Before(s.until) {
		i, more := rng.IntN(len(s.prompts)), `,"max_tokens":8`
		if rng.IntN(2) == 0 {
			more = streaming
		}
		ctx, leave := context.WithCancel(s.t.Context())
		leaves := rng.IntN(5) == 0
		if leaves {
			time.AfterFunc(time.Duration(rng.IntN(60))*time.Millisecond, leave)
		}
		resp, err := s.send(ctx, http.MethodPost, "/v1/chat/completions", chatBody(s.prompts[i], more))
		var r *reply
		if err == nil {
			r = read(resp)
		}
		leave()
		switch {
		case err != nil || r.err != nil:
			if s.left.Add(1); !leaves {
				s.t.Errorf("no answer: %v, %v", err, r)
			}
		case r.status != 200 || strings.Contains(string(r.body), `"error":{`):
			s.failed.Add(1)
		case answerIn(r.body) != s.want[i]:
			s.t.Errorf("prompt %d: %q, want %q: %v", i, answerIn(r.body), s.want[i], r)
		default:
			s.right.Add(1)
		}
	}
}

// kill ends nodes and brings them back.
func (s *soak) kill(rng *rand.Rand) {
	all := slices.Concat(s.prefills, s.decodes)
	for time.Now().Before(s.until) {
		time.Sleep(time.Duration(50+rng.IntN(300)) * time.Millisecond)
		e := all[rng.IntN(len(all))]
		e.Kill()
		time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
		if err := e.Accept(); err != nil {
			s.t.Error(err)
		}
	}
}
