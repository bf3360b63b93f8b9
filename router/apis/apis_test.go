package apis

import "testing"

func TestLacking(t *testing.T) {
	for _, c := range []struct {
		engine, version string
		path            string
		lacks           bool
	}{
		{"vllm", "0.32.0", "/v1/messages", false},
		{"vllm", "0.11.1", "/v1/messages", false},
		{"vllm", "0.11.1rc2+cpu", "/v1/messages", false},
		{"vllm", "0.11.0", "/v1/messages", true},
		{"vllm", "v0.9.2", "/v1/messages?beta=true", true},
		{"vllm", "0.9.2", "/v1/responses", true},
		{"vllm", "0.10.0", "/v1/responses", false},
		{"vllm", "0.10.0", "/v1/messages", true},
		{"vllm", "0.16.0", "/v1/messages/count_tokens", true},
		{"vllm", "0.17.0", "/v1/messages/count_tokens", false},
		{"vllm", "1.0", "/v1/messages/count_tokens", false},
		{"vllm", "", "/v1/messages", false},
		{"vllm", "0.1.dev1+g1234567", "/v1/messages", false},
		{"vllm", "unknown", "/v1/messages", false},
		{"vllm", "0.9.2", "/v1/chat/completions", false},
		{"vllm", "0.9.2", "/v1/audio/speech", false},
		{"sglang", "", "/v1/rerank", false},
		{"sglang", "", "/v2/rerank", true},
		{"sglang", "0.5.4", "/rerank", true},
		{"sglang", "", "/score", true},
		{"sglang", "", "/v1/score", false},
		{"sglang", "", "/v1/messages", false},
		{"llama_cpp", "", "/rerank", false},
		{"llama_cpp", "", "/v1/rerank", false},
		{"llama_cpp", "", "/v2/rerank", true},
		{"llama_cpp", "", "/score", true},
		{"llama_cpp", "", "/v1/score", true},
		{"llama_cpp", "", "/v1/audio/transcriptions", false},
		{"llama_cpp", "", "/v1/audio/translations", true},
		{"llama_cpp", "", "/v1/audio/speech", true},
		{"openai_compat", "", "/v1/audio/speech", false},
		{"", "0.1.0", "/v2/rerank", false},
		{"another", "0.1.0", "/v1/messages", false},
	} {
		if got := Lacking(c.engine, c.version)&Of(c.path) != 0; got != c.lacks {
			t.Errorf("%s %s lacks %s: %v", c.engine, c.version, c.path, got)
		}
	}
}

func TestParse(t *testing.T) {
	for s, want := range map[string]version{
		"0.32.0": {0, 32, 0}, "1.2": {1, 2, 0}, "v0.5.4.post1": {0, 5, 4}, "0.11rc1": {0, 11, 0}, "0.6.3.post1": {0, 6, 3},
		"10.20.30+cu129": {10, 20, 30}, "0.7.x": {0, 7, 0},
	} {
		if v, known := parse(s); !known || v != want {
			t.Errorf("%s: %v, %v", s, v, known)
		}
	}
	for _, s := range []string{"", "1", "latest", "0.18.0.dev17", "x.1", "99999999999999999999.1", "0rc1.5"} {
		if v, known := parse(s); known {
			t.Errorf("%s: %v", s, v)
		}
	}
}

func TestOfDoesNotAllocate(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() {
		if Of("/v1/messages?beta=true") != Messages || Of("/v1/chat/completions") != 0 {
			t.Fatal("wrong")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("0.32.0")
	f.Add("0.11.1rc2.dev3+cpu")
	f.Fuzz(func(t *testing.T, s string) {
		if v, known := parse(s); known && v.before(version{}) {
			t.Errorf("%q: %v", s, v)
		}
	})
}
