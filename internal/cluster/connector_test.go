package cluster

import (
	"slices"
	"strings"
	"testing"
)

func TestCheckConnector(t *testing.T) {
	for _, c := range []struct{ engine, name, says string }{
		{"vllm", "nixl", ""}, {"vllm", "mooncake", ""}, {"sglang", "sglang", ""}, {"trtllm", "trtllm-generation-first", ""},
		{"llama_cpp", "", ""}, {"", "sglang", ""}, {"openai_compat", "trtllm", ""},
		{"vllm", "sglang", `vllm cannot use "sglang"; possible: nixl, mooncake`},
		{"sglang", "nixl", `sglang cannot use "nixl"; possible: sglang`},
		{"trtllm", "nixl", "possible: trtllm, trtllm-generation-first"},
		{"llama_cpp", "nixl", "llama_cpp cannot hand KV blocks to another engine"},
		{"vllm", "warp", `"warp" is no connector; possible: nixl, mooncake, kvcached, sglang, trtllm, trtllm-generation-first`},
		{"", strings.Repeat("x", 1<<20), "is no connector"},
	} {
		err := CheckConnector(c.engine, c.name)
		if (err == nil) != (c.says == "") ||
			err != nil && (!strings.Contains(err.Error(), c.says) || len(err.Error()) > 200) {
			t.Errorf("%s, %.40s: %v, want %q", c.engine, c.name, err, c.says)
		}
	}
	for _, engine := range []string{"vllm", "sglang", "trtllm"} {
		if name := DefaultConnector(engine); !slices.Contains(ConnectorsOf(engine), name) {
			t.Errorf("%s cannot use its default %s", engine, name)
		}
	}
}

func TestBootstrap(t *testing.T) {
	for at, want := range map[string]string{
		"": "", "p.local:8998": "p.local:8998", ":8998": "10.0.0.1:8998", "[fd00::1]:1": "[fd00::1]:1",
	} {
		if err := CheckBootstrap(at); err != nil {
			t.Errorf("%q: %v", at, err)
		}
		if got := ResolveBootstrap(at, "10.0.0.1"); got != want {
			t.Errorf("%q is %q, not %q", at, got, want)
		}
	}
	if got := ResolveBootstrap(":1", "fd00::1") + ResolveBootstrap(":1", ""); got != "[fd00::1]:1" {
		t.Error(got)
	}
	for _, bad := range []string{"8998", "h:", ":0", ":70000", "unix:///s", "h:1:2", strings.Repeat("h", 600) + ":1"} {
		if CheckBootstrap(bad) == nil {
			t.Errorf("%.40q is taken", bad)
		}
	}
}

// TestConnectorOfANewerAgent: a router uses a node whose connector it does not know, without the
// connector.
func TestConnectorOfANewerAgent(t *testing.T) {
	for name, c := range map[string]struct{ members, says string }{
		"unknown":       {`"connector":"warp","bootstrap":":8998"`, `"warp" is no connector`},
		"impossible":    {`"connector":"sglang"`, "vllm cannot use"},
		"bad bootstrap": {`"connector":"mooncake","bootstrap":"nowhere"`, "not host:port"},
		"known":         {`"connector":"mooncake","bootstrap":":8998"`, ""},
	} {
		h, err := ParseNodeHealth("n1", []byte(strings.Replace(goodNode, "{", "{"+c.members+",", 1)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.says == "" && (h.LeftOut != nil || h.Connector != ConnectorMooncake || h.Bootstrap != ":8998") ||
			c.says != "" && (h.LeftOut == nil || !strings.Contains(h.LeftOut.Error(), c.says)) {
			t.Errorf("%s: %q %q, %v", name, h.Connector, h.Bootstrap, h.LeftOut)
		}
	}
	h := NodeHealth{NodeID: "n", Address: "http://h:1", Engine: "vllm", Connector: "warp", Bootstrap: "x"}
	if err := h.Check(); err == nil || !strings.Contains(err.Error(), "connector: ") ||
		!strings.Contains(err.Error(), "bootstrap") {
		t.Errorf("an agent announces it: %v", err)
	}
}
