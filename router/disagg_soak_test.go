package router_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestSoakOfHandovers sends requests to nodes of both roles while nodes die and return at random
// moments, and clients leave. SOAK_HANDOVERS is its duration, 2 s by default. An answer is right or
// an error, and at the end nothing is left of any request.
func TestSoakOfHandovers(t *testing.T) {
	t.Parallel()
	d := divide(t, 2, 3, func(c *router.Config) { c.Router.Resume.Mode = cmp.Or(os.Getenv("SOAK_RESUME"), "auto") })
	s := newSoak(t, d, math.MaxInt64)
	s.leaving = os.Getenv("SOAK_STAY") == ""
	s.run(soakTime(t), slices.Concat(d.prefills, d.decodes))
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

// soakTime returns how long a soak lasts.
func soakTime(t *testing.T) time.Duration {
	lasts := 2 * time.Second
	if text := os.Getenv("SOAK_HANDOVERS"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	return lasts
}

// TestKilledPrefillNodes checks that every request gets the right answer while the nodes that
// compute prompts die at random moments.
func TestKilledPrefillNodes(t *testing.T) {
	t.Parallel()
	d := divide(t, 2, 2)
	s := newSoak(t, d, 200)
	s.run(soon, d.prefills)
	if right := s.right.Load(); right != 200 {
		t.Errorf("%d of 200 answers are right, %d are errors", right, s.failed.Load())
	}
	if d.handovers("split") == 0 {
		t.Error("no prompt was handed over")
	}
}

// soak is the traffic of a soak.
type soak struct {
	*divided
	requests            atomic.Int64 // still to be sent
	until               time.Time
	prompts, want       []string
	leaving             bool // some clients leave
	right, failed, left atomic.Int64
}

// newSoak prepares a soak of at most this many requests.
func newSoak(t *testing.T, d *divided, requests int64) *soak {
	t.Helper()
	s := &soak{divided: d, prompts: make([]string, 24), want: make([]string, 24)}
	s.requests.Store(requests)
	for i := range s.prompts {
		s.prompts[i] = longPrompt(fmt.Sprint("prompt ", i))
		if i%3 == 0 {
			s.prompts[i] = fmt.Sprint("a short prompt ", i)
		}
		s.want[i] = d.alone(t, chatBody(s.prompts[i], streaming))
	}
	return s
}

// run sends requests for some time while nodes die, and waits until nothing is left of them.
func (s *soak) run(lasts time.Duration, victims []*engine.Engine) {
	s.until = time.Now().Add(lasts)
	var clients, killer sync.WaitGroup
	for worker := range 12 {
		clients.Go(func() { s.ask(rand.New(rand.NewPCG(7, uint64(worker)))) })
	}
	ended := make(chan struct{})
	killer.Go(func() { s.kill(rand.New(rand.NewPCG(8, 8)), victims, ended) })
	clients.Wait()
	close(ended)
	killer.Wait()
	s.idle()
	s.nothingLeft(s.t)
}

// ask sends one request after the other, and leaves some of them.
func (s *soak) ask(rng *rand.Rand) {
	for s.requests.Add(-1) >= 0 && time.Now().Before(s.until) {
		i, more := rng.IntN(len(s.prompts)), `,"max_tokens":8`
		if rng.IntN(2) == 0 {
			more = streaming
		}
		ctx, leave := context.WithCancel(s.t.Context())
		leaves := s.leaving && rng.IntN(5) == 0
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
				s.t.Errorf("no answer: %v, %v\n%s", err, r, s.log.last(12))
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

// kill ends one of the nodes after the other and brings it back, until ended is closed.
func (s *soak) kill(rng *rand.Rand, victims []*engine.Engine, ended chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-time.After(time.Duration(20+rng.IntN(300)) * time.Millisecond):
		}
		e := victims[rng.IntN(len(victims))]
		e.Kill()
		time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
		if err := e.Accept(); err != nil {
			s.t.Error(err)
		}
	}
}
