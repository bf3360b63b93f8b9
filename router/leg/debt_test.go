package leg

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestRepaymentOwnsItsMemory checks that the errand shares no memory with the request, and that its
// deadline is not the client's.
func TestRepaymentOwnsItsMemory(t *testing.T) {
	now := time.Now()
	for source, line := range map[fleet.Source]string{
		fleet.Etcd:   string(relay.AppendDeadline(nil, now.Add(repayWithin), now)),
		fleet.Static: "",
	} {
		rank := &fleet.Rank{Header: []byte("Rank: 1\r\n")}
		n := &member{node: &nodeState{Node: &fleet.Node{Source: source}}, rank: rank}
		header, body, key := []byte("A: b\r\n"), []byte("body"), []byte("key")
		out := &relay.Request{
			Header: header, Body: [][]byte{body[:2], body[2:]}, ForwardAuthorization: key,
			More: relay.AppendDeadline(nil, time.Time{}, time.Now()),
		}
		q := repayment(n, out, now)
		for _, b := range [][]byte{header, body, key, n.rank.Header, out.More} {
			copy(b, strings.Repeat("#", len(b)))
		}
		if got := string(bytes.Join(q.Body, nil)); string(q.Header) != "A: b\r\n" || got != "body" ||
			string(q.ForwardAuthorization) != "key" || string(q.More) != "Rank: 1\r\n"+line || q.Abort != nil {
			t.Errorf("%q %q %q %q", q.Header, q.More, got, q.ForwardAuthorization)
		}
	}
}

// TestRepaymentsAreBounded checks that the blocks of a prompt stay at P if the dispatcher has no
// room for an errand, and that an errand gives back its room.
func TestRepaymentsAreBounded(t *testing.T) {
	for _, full := range []bool{false, true} {
		d, engines := pairOf(t, engine.ConnectorTRTLLM)
		p, decoder := engines[0], engines[1]
		decoder.SetFault(&engine.Fault{Status: 503, Count: 1})
		if full && !d.errands.reserve(maxErrandBytes) {
			t.Fatal("no room")
		}
		to := answer.Memory{Limit: 1 << 20}
		l := d.Leg(asked(t, d, chat(2000)), Question{}, &to)
		if err := l.Do(); err != nil || to.Status != 503 {
			t.Errorf("%v, %d: %s", err, to.Status, to.Body)
		}
		l.Finish(relay.Complete)
		if full {
			d.errands.run(maxErrandBytes, func() {})
		}
		d.errands.end()
		kept, asked := int64(0), int64(2)
		if full {
			kept, asked = 1, 1
		}
		if n := p.Stats().LentRequests; n != kept {
			t.Errorf("%d prompts are kept, want %d", n, kept)
		}
		if s := decoder.Stats(); s.Received != asked || (s.ReceivedTokens > 0) == full {
			t.Errorf("%+v", s)
		}
		if d.errands.count != 0 || d.errands.bytes != 0 {
			t.Errorf("%d errands of %d bytes are left", d.errands.count, d.errands.bytes)
		}
	}
}
