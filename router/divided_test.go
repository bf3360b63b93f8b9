package router

import (
	"log/slog"
	"testing"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/prefix"
)

// TestLacking checks what a model is told to lack for hand-overs.
func TestLacking(t *testing.T) {
	const (
		near = "http://10.0.0.1:1"
		far  = "http://10.0.0.2:1"
		sock = "unix:/run/engine.sock"
	)
	for _, c := range []struct {
		nodes []fleet.Backend
		want  string
	}{
		{[]fleet.Backend{{URL: near, Role: "prefill", Connector: "nixl"},
			{URL: far, Role: "decode", Connector: "nixl"}}, ""},
		{[]fleet.Backend{{URL: near, Role: "both", Connector: "mooncake"},
			{URL: far, Role: "decode", Connector: "mooncake"}}, ""},
		{[]fleet.Backend{{URL: sock, Role: "both", Connector: "mooncake", Bootstrap: "10.0.0.1:2"},
			{URL: far, Role: "decode", Connector: "mooncake"}}, ""},
		{[]fleet.Backend{{URL: near, Role: "decode", Connector: "nixl"}, {URL: far, Role: "decode", Connector: "nixl"}},
			"no node of role prefill, or of role both with a connector, serves it"},
		{[]fleet.Backend{{URL: near, Role: "prefill", Connector: "nixl"}, {URL: far, Role: "both"}},
			"no node of role decode, or of role both with a connector, serves it"},
		{[]fleet.Backend{{URL: near, Role: "prefill", Connector: "nixl"},
			{URL: far, Role: "decode", Connector: "mooncake"}},
			"no two of its nodes have the same connector"},
		{[]fleet.Backend{{URL: sock, Role: "decode", Connector: "mooncake"},
			{URL: far, Role: "decode", Connector: "mooncake"}},
			"its nodes that compute prompts have no bootstrap address, which connector mooncake needs"},
	} {
		index := prefix.NewIndex(prefix.Options{})
		t.Cleanup(index.Close)
		for i := range c.nodes {
			c.nodes[i].ID, c.nodes[i].Model = string(rune('a'+i)), "sim"
		}
		o := fleet.Options{Index: index, Logger: slog.New(slog.DiscardHandler), Proven: true, Backends: c.nodes}
		if c.nodes[0].URL == sock { // as its own role it is refused
			o.Models = map[string]*cluster.Model{"sim": {Pools: map[cluster.Role][]string{"prefill": {"a"}}}}
		}
		f, err := fleet.New(o)
		if err != nil {
			t.Errorf("%+v: %v", c.nodes, err)
			continue
		}
		for _, m := range f.Load().Models() {
			if got := lacking(m); got != c.want {
				t.Errorf("%+v: %q, want %q", c.nodes, got, c.want)
			}
		}
	}
}
