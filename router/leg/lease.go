package leg

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/connector"
)

// begin returns the time by which D's engine must have got the request, so that P has kept the
// blocks; zero: any time will do.
func (h *hand) begin() time.Time {
	lender, ok := h.with.(connector.Lender)
	if lease := h.of.d.o.Disagg.Lease; ok && lease > 0 {
		return h.last.ended.Add(lender.Begin(lease))
	}
	return time.Time{}
}

// readLate says whether P's blocks may have been freed before D's engine got the request. D's
// answer ex began at head. The engine would have read what is in their place. It sends the head of
// a stream when it gets the request. Its other answers say for how long it has worked on them.
func (l *Leg) readLate(a *attempt, ex *relay.Exchange, head time.Time) bool {
	end := l.hand.begin()
	if end.IsZero() || !head.After(end) || !ex.IsSSE() && !head.Add(-worked(ex)).After(end) {
		return false
	}
	l.resalt(a.member.node)
	return true
}

// mayReadLate says whether D may still read the blocks too late, after an exchange that ended in v.
// D has then stood still, and given no sign of having the request.
func (l *Leg) mayReadLate(a *attempt, v verdict) bool {
	end := l.hand.begin()
	if end.IsZero() || a.ex != nil && a.ex.Status() != 0 {
		return false
	}
	switch v {
	case overdue, stalled, silent:
		return true
	case answered, unreached, starved:
		return false
	}
	return l.Request.Scan.Stream && time.Now().After(end)
}

// resalt keeps further requests from what the node's engine has cached. vLLM caches what it has
// read too late as the blocks of the right prompt.
func (l *Leg) resalt(n *nodeState) { n.salt.Store(l.d.o.Random() | 1) }

// salted returns the request's cache_salt for a node with this salt, as JSON.
func (l *Leg) salted(salt uint64) []byte {
	return jsonscan.AppendQuoted(nil, fmt.Appendf(nil, "cgn-%x-%s", salt, l.Request.Scan.CacheSalt))
}

// worked returns the time from the engine's start with a request to the head of its answer in ex,
// to about a second; 0: unknown. The answer's members created and Date are by one clock.
func worked(ex *relay.Exchange) time.Duration {
	date, err := http.ParseTime(string(ex.Header("date")))
	_, after, _ := bytes.Cut(ex.Held(), createdMember)
	digits := bytes.TrimLeft(after, " ")
	n := 0
	for n < len(digits) && '0' <= digits[n] && digits[n] <= '9' {
		n++
	}
	created, failed := strconv.ParseInt(string(digits[:n]), 10, 64)
	if err != nil || failed != nil {
		return 0
	}
	return max(date.Sub(time.Unix(created, 0)), 0)
}

// createdMember comes before all text in the answers of vLLM.
var createdMember = []byte(`"created":`)
