package leg

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/nvext"
	"github.com/cognitora/dataplane/router/policy"
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

// TestRefusedBlocksAreFreed checks that a node reads the blocks that a refused request has not
// read.
func TestRefusedBlocksAreFreed(t *testing.T) {
	for _, status := range []int{400, 404, 422} {
		d, engines := pairOf(t, engine.ConnectorTRTLLM)
		p, decoder := engines[0], engines[1]
		decoder.SetFault(&engine.Fault{Status: status, Count: 1})
		to := answer.Memory{Limit: 1 << 20}
		l := d.Leg(asked(t, d, chat(2000)), Question{}, &to)
		if err := l.Do(); err != nil || to.Status != 200 {
			t.Errorf("%d: %v, %d: %s", status, err, to.Status, to.Body)
		}
		l.Finish(relay.Complete)
		d.errands.end()
		if n := p.Stats().LentRequests; n != 0 {
			t.Errorf("%d: %d prompts are kept", status, n)
		}
		if n := decoder.Stats().Received; n != 3 {
			t.Errorf("%d: the decoder has got %d requests", status, n)
		}
	}
}

// TestFreersMayBeAsked checks that only a node that the request may go to reads the blocks in place
// of the node that was to answer.
func TestFreersMayBeAsked(t *testing.T) {
	var other *fleet.Node
	for name, c := range map[string]struct {
		q    Question
		want bool
	}{
		"any node":              {Question{}, true},
		"another node is named": {Question{Bond: Named, Node: "d1"}, false},
		"not allowed":           {Question{Allowed: nvext.Workers{"d1"}}, false},
		"allowed":               {Question{Allowed: nvext.Workers{"d1", "d2"}}, true},
		"left out by a plan":    {Question{Filter: func(n *fleet.Node) bool { return n != other }}, false},
		"lacks a label":         {Question{Constraints: Constraints{Required: []string{"zone=a"}}}, false},
		"has the label":         {Question{Constraints: Constraints{Required: []string{"zone=b"}}}, true},
		"another rank":          {Question{Rank: policy.Given[uint32](1)}, false},
		"lacks an expert":       {Question{Constraints: Constraints{Experts: []string{"x"}, Strict: true}}, false},
	} {
		both := []string{"zone=b"}
		d := still(t, Options{},
			fleet.Backend{URL: "http://10.0.0.1:1", ID: "d1", Model: "sim", Connector: "nixl",
				Labels: append(both, "zone=a")},
			fleet.Backend{URL: "http://10.0.0.2:1", ID: "d2", Model: "sim", Connector: "nixl", Labels: both})
		other = d.current().snap.Node("d2")
		r := asked(t, d, chat(2000))
		l := d.Leg(r, c.q, nil)
		if err := l.resolve(); err != nil {
			t.Fatal(err)
		}
		members := l.pool.members
		members[0].node.Health.SetAside("a test")
		l.tries.asked = members
		h := &hand{of: l}
		h.reader, h.partner, h.with = members[0], &member{}, members[0].connector
		if n := h.freer(); (n != nil) != c.want || n != nil && n != members[1] {
			t.Errorf("%s: %v reads the blocks", name, n)
		}
		if h.partner = members[1]; h.freer() != nil {
			t.Errorf("%s: P reads its own blocks", name)
		}
		if d.Permits(r, c.q, other) != c.want || d.Permits(r, c.q, new(fleet.Node)) {
			t.Errorf("%s: a leg may ask the node: %v", name, !c.want)
		}
		l.recycle()
	}
}
