package router_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// phase are faults that hold a streamed request up in a phase of a hand-over, until they end.
type phase struct{ prefill, decode *engine.Fault }

var phases = map[string]phase{
	"while P computes":            {prefill: &engine.Fault{Hang: true}},
	"while D has no answer":       {decode: &engine.Fault{Hang: true}},
	"while D has sent only ahead": {decode: &engine.Fault{HangBody: true}},
	"while D streams":             {decode: &engine.Fault{StallAfter: new(2)}},
}

// inEachPhase calls f for all wires and phases.
func inEachPhase(t *testing.T, f func(t *testing.T, w wire, phase phase)) {
	each(t, func(t *testing.T, w wire) {
		for name, phase := range phases {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f(t, w, phase)
			})
		}
	})
}

// reach sends a streamed request and waits until it is in the phase.
func (d *divided) reach(t *testing.T, phase phase, ctx context.Context) (ended chan *reply) {
	t.Helper()
	d.known(t)
	body := chatBody(longPrompt("the prompt"), streaming)
	p, decoder := d.picks(t, body)
	p.SetFault(phase.prefill)
	decoder.SetFault(phase.decode)
	ended = make(chan *reply, 1)
	go func() {
		resp, err := d.send(ctx, http.MethodPost, "/v1/chat/completions", body)
		if err != nil {
			ended <- &reply{err: err}
			return
		}
		defer resp.Body.Close()
		page, err := io.ReadAll(resp.Body)
		ended <- &reply{status: resp.StatusCode, header: resp.Header, body: page, err: err}
	}()
	eventually(t, "the fault strikes", func() bool { return p.Stats().Faults+decoder.Stats().Faults > 0 })
	return ended
}

// TestClientLeavesDuringAHandover checks that nothing is left of a request whose client leaves.
func TestClientLeavesDuringAHandover(t *testing.T) {
	inEachPhase(t, func(t *testing.T, w wire, phase phase) {
		d := w.divide(t, 1, 1)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		ended := d.reach(t, phase, ctx)
		leave()
		<-ended
		d.idle()
		d.nothingLeft(t)
		if n := d.log.count("hand-over of a prompt failed"); n != 0 {
			t.Errorf("%d hand-overs count as failed", n)
		}
		for _, n := range d.nodes() {
			if n.State != "healthy" || n.Opens != 0 {
				t.Errorf("blamed: %+v", n)
			}
		}
		if n := d.metrics().sum("cgn_router_upstream_errors_total"); n != 0 {
			t.Errorf("blamed:\n%s", d.metrics().lines("cgn_router_upstream_errors_total"))
		}
	})
}

// nothingLeft waits until the engines have no request and keep no block for others.
func (d *divided) nothingLeft(t *testing.T) {
	t.Helper()
	for _, e := range slices.Concat(d.prefills, d.decodes) {
		eventually(t, "the engine is idle", func() bool {
			s := e.Stats()
			return s.InFlight+s.Running+s.Waiting+s.LentRequests == 0
		})
	}
}

// TestShutdownDuringAHandover checks that a router that stops ends the request, with an error that
// says so.
func TestShutdownDuringAHandover(t *testing.T) {
	inEachPhase(t, func(t *testing.T, w wire, phase phase) {
		d := w.divideWith(t, 1, 1, func(c *router.Config) { c.Router.DrainTimeout = 0 })
		ended := d.reach(t, phase, t.Context())
		if err := d.stop(); err != nil {
			t.Error(err)
		}
		if r := <-ended; r.err != nil || !strings.Contains(string(r.body), "shutting") && r.status != 503 {
			t.Errorf("%v", r)
		}
		d.nothingLeft(t)
	})
}
