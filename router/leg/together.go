package leg

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
)

// beside is a leg for P that runs beside D's exchange.
type beside struct {
	mu      sync.Mutex
	running *Leg          // nil: it has ended
	off     bool          // D has called it off
	done    chan struct{} // closed once it has ended
	way     Way           // how it went; valid once done is closed
}

// prefillBeside asks P at once, beside D's exchange. If P's leg panics, P has given no answer. The
// edits of both legs read the index of the body, which considers has made.
func (h *hand) prefillBeside() {
	p := h.prefill
	if p == nil {
		return
	}
	h.prefill, h.stage, h.running, h.off, h.done = nil, together, p, false, make(chan struct{})
	go func() {
		defer close(h.done)
		defer func() {
			if bug := recover(); bug != nil {
				h.bug(bug)
				h.forsake()
			}
		}()
		h.way = h.ask(p)
	}()
}

// forsake notes that P gives no answer, and ends D's exchange unless D has called P off.
func (h *hand) forsake() {
	h.mu.Lock()
	h.running, h.way = nil, Broken
	off := h.off
	h.mu.Unlock()
	if !off {
		h.of.unpair()
	}
}

// bug reports what a leg for P has panicked with.
func (h *hand) bug(p any) { h.of.d.metrics.Bug(h.of.d.log, "asking a node to compute a prompt", p) }

// run runs the leg p for P. A panic is an error, so that p can be finished.
func (h *hand) run(p *Leg) (err *apierror.Error) {
	defer func() {
		if bug := recover(); bug != nil {
			h.bug(bug)
			err = errBug
		}
	}()
	return p.run(h.at)
}

// errBug is the error of a leg for P that has panicked. No client gets it.
var errBug = &apierror.Error{Status: http.StatusInternalServerError, Code: "bug", Message: "an error of the router"}

// callOff ends P's leg beside D's exchange and waits for its end. failed says that P had failed
// before.
func (h *hand) callOff() (failed bool) {
	if h.stage != together {
		return false
	}
	h.mu.Lock()
	ended := h.running == nil
	if h.off = true; !ended {
		h.running.callOff()
	}
	h.mu.Unlock()
	<-h.done
	h.stage = unasked
	return ended && h.way != Split
}

// computed waits until P has computed the prompt beside D's exchange, whose answer has the status.
// computed returns false if P has failed. The limits of P's own exchange bound the wait. computed
// calls P off if D refuses the request.
func (h *hand) computed(status int) bool {
	switch {
	case h.stage != together:
		return true
	case status >= 400:
		h.callOff()
		return true
	}
	<-h.done
	return h.way == Split
}

// callOff ends the leg. Another goroutine than the leg's may call it, before Finish.
func (l *Leg) callOff() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.off = true; l.now != nil { // the abort is that of a running attempt
		l.abort.Cancel()
	}
}

// unpair ends the exchange of D, because P has failed.
func (l *Leg) unpair() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase == waiting {
		l.phase = forsaken
		l.abort.Cancel()
	}
}

// mayTryAgain says whether a needy node may get another partner after a hand-over that failed in
// way w. If P has refused the request, another P would refuse it too. The retry budget pays.
func (h *hand) mayTryAgain(w Way) bool {
	d := h.of.d
	if h.fails >= d.o.MaxNodes || h.refusal(w) != nil {
		return false
	}
	if !d.budget.Allow() {
		d.metrics.RetriesRefused.Inc()
		return false
	}
	return true
}

// refusal returns the answer with which P has refused a request that it cannot serve, or nil.
func (h *hand) refusal(w Way) *apierror.Error {
	status := h.place.Status
	if w != Refused || status < 400 || status >= 500 || status == http.StatusTooManyRequests {
		return nil
	}
	e := &apierror.Error{
		Status: status, Code: "prefill_refused", Message: "the node that computes the prompt refuses it",
	}
	for _, path := range [...][]string{{"error", "message"}, {"message"}} {
		var text string
		if v, _ := scan.Find(h.place.Body, path...); v != nil && json.Unmarshal(v, &text) == nil {
			e.Message += ": " + text
			break
		}
	}
	return e
}

// pairAnew picks another node to compute the prompt for the attempt's needy node.
func (l *Leg) pairAnew(a *attempt) bool {
	h := l.hand
	if h.fails++; !h.engage() {
		l.unsplit(a, NoNode, time.Now())
		return false
	}
	l.way, a.split = Split, true
	l.prefillFirst(a)
	return a.split
}

// orphaned says whether the attempt's node is needy and has no partner. A request that goes to such
// a node as it is has none in any case.
func (l *Leg) orphaned(a *attempt) bool {
	api := l.Request.API
	return a.member.needy && !a.split && l.way != Single && (api == scan.Chat || api == scan.Completions)
}

// bereft returns the verdict on an attempt whose needy node gets no partner.
func (l *Leg) bereft() verdict {
	if l.Request.Life.Ended() != request.None {
		return abandoned
	}
	return orphaned
}

// errOrphaned returns the error of a request whose needy node has no partner.
func (l *Leg) errOrphaned() *apierror.Error {
	if l.hand != nil {
		if e := l.hand.refusal(l.way); e != nil {
			return e
		}
	}
	return unavailable("no_prefill_node", "no node computes the prompt for the node that would answer, which cannot do "+
		"so itself ("+l.way.String()+"); GET /debug/fleet at the router's admin port lists the nodes of role prefill")
}
