package kvcached

import (
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

// TestGetAsksTheFleetForKeys gets a client's key through gRPC from the host that has it. No client
// has used the namespace here before. Lookups and lists cover this host only.
func TestGetAsksTheFleetForKeys(t *testing.T) {
	s := newSite(t)
	a, _ := s.host(t, "a", nil)
	b, _ := s.host(t, "b", nil)
	meet(t, 2, a, b)
	set(t, a, "greeting", []byte("hello"))
	set(t, b, "answer", []byte("world"))
	space := block.Namespace{Space: "resp.0"}
	for _, c := range []struct {
		at         *Daemon
		key, value string
	}{{b, "greeting", "hello"}, {a, "answer", "world"}} {
		awaitThat(t, c.key+" is read on the other host", func() bool {
			return string(payload(t, kv(t, c.at), space, block.OfKey(space.ID(), []byte(c.key)))) == c.value
		})
	}
	if got := payload(t, kv(t, b), space, block.OfKey(space.ID(), []byte("nobody's"))); got != nil {
		t.Errorf("%q", got)
	}
}
