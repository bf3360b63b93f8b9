package leg

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/fleet"
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
