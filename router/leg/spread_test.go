package leg

import (
	"fmt"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/scan"
)

// TestUnansweredRequestsSpread checks that equal nodes get about equally many requests before the
// first answer, however late that is, streams or not. A node that has only requests without a
// stream is not seen to be late, so with both kinds they differ more.
func TestUnansweredRequestsSpread(t *testing.T) {
	for _, streams := range []int{0, 2, 1} { // none, every second one, all
		for _, every := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond, time.Second} {
			spread(t, streams, every)
		}
	}
}

// spread sends requests to nodes that do not answer.
func spread(t *testing.T, streams int, every time.Duration) {
	t.Helper()
	const nodes, each = 5, 8
	var backends []fleet.Backend
	for i := range nodes {
		url := fmt.Sprintf("http://10.0.0.%d:1", i+1)
		backends = append(backends, fleet.Backend{URL: url, ID: fmt.Sprint(i), Model: "sim"})
	}
	d := still(t, repeatable(), backends...)
	decide(t, d, predicted)
	var legs []*Leg
	began := time.Now()
	for i := range nodes * each {
		now := began.Add(time.Duration(i) * every)
		body := fmt.Appendf(nil, `{"model":"sim","messages":[{"role":"user","content":"question %d"}]}`, i)
		l := d.Leg(asked(t, d, body), Question{}, nil)
		l.Request.Scan.Stream = streams > 0 && i%streams == 0
		if err := l.resolve(); err != nil {
			t.Fatal(err)
		}
		l.prompt.MeasureBlocks(l.Request, 1, nodes)
		if _, err := l.choose(now); err != nil {
			t.Fatal(err.Message)
		}
		l.spare().sent = now
		legs = append(legs, l)
		for _, l := range legs { // as the patience tracker does
			if a := l.spare(); !l.Request.Scan.Stream && now.Sub(a.sent).Seconds() > a.forecast.ttft {
				l.assumed(a, now)
			}
		}
	}
	off := int32(2)
	if streams > 1 {
		off = each - 1
	}
	for _, n := range d.fleet.Load().Nodes {
		if got := n.InFlight(); got < each-off || got > each+off {
			t.Errorf("one stream in %d, one request in %v: node %s has %d requests, want %d", streams, every,
				n.ID, got, each)
		}
	}
	for _, l := range legs {
		l.drop(l.spare())
		l.giveBack()
	}
	noneLeft(t, d.fleet.Load().Nodes)
}

// TestAnnouncedResponsesWait checks that the prompt of a response waits until the first event that
// does not only announce it.
func TestAnnouncedResponsesWait(t *testing.T) {
	d := still(t, repeatable(), twoNodes()[:1]...)
	decide(t, d, predicted)
	now := time.Now()
	r := rehearsed(t, d, 10, now)
	l := r.l
	l.Request.API, l.now.streams, l.now.status = scan.Responses, true, 200
	r.Begun(now)
	book := &l.now.member.rank.Book
	for _, c := range []struct {
		event   string
		waiting int32
	}{
		{"response.created", 1}, {"response.in_progress", 1}, {"response.output_item.added", 0},
		{"response.output_text.delta", 0},
	} {
		l.Event(sse.Event{Name: []byte(c.event), Data: []byte("{}"), Raw: []byte("data: {}\n\n")}, now)
		if got := book.WaitingPrompts(); got != c.waiting {
			t.Errorf("after %s %d prompts wait, want %d", c.event, got, c.waiting)
		}
	}
	l.drop(l.now)
	l.close()
	noneLeft(t, d.fleet.Load().Nodes)
}
