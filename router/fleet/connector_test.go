package fleet

import (
	"slices"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
)

func TestHands(t *testing.T) {
	const prefill, decode, both = cluster.RolePrefill, cluster.RoleDecode, cluster.RoleBoth
	for _, c := range []struct {
		engine, stated string
		role           cluster.Role
		want           string
	}{
		{"vllm", "", prefill, "nixl"}, {"vllm", "", decode, "nixl"}, {"vllm", "", both, ""},
		{"vllm", "mooncake", decode, "mooncake"}, {"vllm", "nixl", both, "nixl"}, {"vllm", "sglang", prefill, ""},
		{"sglang", "", prefill, "sglang"}, {"trtllm", "", decode, "trtllm"},
		{"trtllm", "trtllm-generation-first", decode, "trtllm-generation-first"},
		{"llama_cpp", "", prefill, ""}, {"", "", prefill, ""}, {"", "sglang", both, "sglang"},
		{"openai_compat", "", prefill, ""}, {"openai_compat", "trtllm", prefill, "trtllm"},
	} {
		info := &Info{Engine: c.engine, Connector: c.stated}
		if got := info.Hands(c.role); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
		if n := testing.AllocsPerRun(10, func() { _ = info.Hands(c.role) }); c.want != "" && n > 0 {
			t.Errorf("%+v: %v allocations", c, n)
		}
	}
}

// TestConnectorFollowsTheEngine: a prefill node has the connector of its engine once the engine has
// said what it is, and with it the address of the bootstrap server.
func TestConnectorFollowsTheEngine(t *testing.T) {
	t.Parallel()
	e := newEngine(t, nil, "m")
	e.set(func(e *engine) { e.owner = "sglang" })
	view := func(s *Snapshot) NodeView { return s.View(time.Now()).Nodes[0] }
	f := run(t, fast(Backend{URL: e.URL, Role: "prefill"}))
	eventually(t, f, "sglang", func(s *Snapshot) bool {
		return len(s.Nodes) == 1 && view(s).Connector == "sglang" && view(s).Bootstrap == "127.0.0.1:8998"
	})
	e.set(func(e *engine) { e.owner = "tensorrt_llm" })
	eventually(t, f, "trtllm", func(s *Snapshot) bool {
		return view(s).Engine == "trtllm" && view(s).Connector == "trtllm" && view(s).Bootstrap == ""
	})
	if err := f.Reload(t.Context(), []Backend{{URL: e.URL, Role: "prefill", Connector: "mooncake"}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, f, "a problem", func(s *Snapshot) bool {
		return slices.ContainsFunc(s.Problems, func(p Problem) bool {
			return p.Reason == `connector: trtllm cannot use "mooncake"; possible: trtllm, trtllm-generation-first`
		})
	})
	if got := f.Load().Nodes[0].Info().Hands(cluster.RolePrefill); got != "" {
		t.Error(got)
	}
}

func TestConnectorOfABackend(t *testing.T) {
	for _, c := range []struct {
		b    Backend
		want string
	}{
		{Backend{URL: "http://10.0.0.1:8000", Connector: "mooncake"}, "10.0.0.1:8998"},
		{Backend{URL: "http://[fd00::1]:8000", Connector: "sglang", Bootstrap: ":9"}, "[fd00::1]:9"},
		{Backend{URL: "http://10.0.0.1:8000", Connector: "sglang", Bootstrap: "10.1.0.1:9"}, "10.1.0.1:9"},
		{Backend{URL: "http://10.0.0.1:8000", Connector: "nixl", Role: "prefill"}, ""},
		{Backend{URL: "http://10.0.0.1:8000"}, ""},
		{Backend{URL: "unix:///e.sock", Role: "prefill"}, ""},
	} {
		target, _, err := c.b.target()
		if err != nil || c.b.Check() != nil {
			t.Fatal(err, c.b.Check())
		}
		if got := staticInfo(c.b, target, discovery{}).Bootstrap; got != c.want {
			t.Errorf("%+v: %q, not %q", c.b, got, c.want)
		}
	}
	m := &member{backend: Backend{URL: "unix:///e.sock", Role: "prefill"}}
	target, _, _ := m.backend.target()
	if d := (discovery{engine: "sglang"}); m.wrong(d, staticInfo(m.backend, target, d)) != noBootstrap {
		t.Error("a socket's bootstrap server is no problem")
	}
}

func TestConnectorOfAnAgent(t *testing.T) {
	info := etcdInfo(&cluster.NodeHealth{Address: "https://10.0.0.1:9081", Engine: "vllm", Connector: "mooncake",
		Bootstrap: ":8999"})
	if info.Connector != "mooncake" || info.Bootstrap != "10.0.0.1:8999" {
		t.Errorf("%+v", info)
	}
	info = etcdInfo(&cluster.NodeHealth{Address: "unix:///a.sock", Engine: "sglang", Role: "prefill"})
	if info.Bootstrap != "" {
		t.Errorf("%+v", info)
	}
}
