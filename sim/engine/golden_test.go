package engine

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
)

// The files in testdata are answers of vLLM 0.32 to a chat request, to a streamed chat request, and
// on its metrics page.

func golden(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// sameFields checks that got has exactly the fields of want, with values of the same JSON type.
// null matches any type. sameFields compares only the first elements of lists.
func sameFields(t *testing.T, path string, got, want any) {
	t.Helper()
	if got == nil || want == nil {
		return
	}
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			t.Errorf("%s is %T, want an object", path, got)
			return
		}
		for k := range g {
			if _, ok := w[k]; !ok {
				t.Errorf("%s.%s is not in the recorded answer", path, k)
			}
		}
		for k := range w {
			if _, ok := g[k]; !ok {
				t.Errorf("%s.%s is missing", path, k)
				continue
			}
			sameFields(t, path+"."+k, g[k], w[k])
		}
	case []any:
		g, ok := got.([]any)
		if !ok {
			t.Errorf("%s is %T, want a list", path, got)
		} else if len(g) > 0 && len(w) > 0 {
			sameFields(t, path+"[0]", g[0], w[0])
		}
	default:
		if fmt.Sprintf("%T", got) != fmt.Sprintf("%T", want) {
			t.Errorf("%s is %T, want %T", path, got, want)
		}
	}
}

func TestChatHasTheFieldsOfVLLM(t *testing.T) {
	e := start(t)
	doc := object(t, post(t, e, "/v1/chat/completions",
		chatBody("hello", `,"max_tokens":8,"logprobs":true,"top_logprobs":2`)), 200)
	sameFields(t, "chat", doc, decoded(t, golden(t, "chat_1.json")))
}

func TestStreamHasTheFieldsOfVLLM(t *testing.T) {
	head, body, _ := strings.Cut(golden(t, "sse_stream.txt"), "data: ")
	want, err := events(strings.NewReader("data: " + body))
	if err != nil {
		t.Fatal(err)
	}
	e := start(t)
	res := post(t, e, "/v1/chat/completions",
		chatBody("hello", `,"max_tokens":4,"stream":true,"stream_options":{"include_usage":true}`))
	if kind := "content-type: " + res.Header.Get("Content-Type"); !strings.Contains(head, kind) {
		t.Errorf("%s", kind)
	}
	got, err := events(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Fatalf("%d events, want %d", len(got), len(want))
	}
	for i := range got[:len(got)-1] {
		sameFields(t, fmt.Sprintf("event %d", i), decoded(t, got[i].data), decoded(t, want[i].data))
	}
}

func TestUsageWithoutPromptTokensDetails(t *testing.T) {
	e := start(t, func(c *Config) { c.OmitCachedTokens = true })
	doc := object(t, post(t, e, "/v1/chat/completions", chatBody("hello", "")), 200)
	if details, there := at(t, doc, "usage").(map[string]any)["prompt_tokens_details"]; !there || details != nil {
		t.Errorf("details %v", details)
	}
	list, err := events(post(t, e, "/v1/chat/completions",
		chatBody("hello", `,"stream":true,"stream_options":{"include_usage":true}`)).Body)
	if err != nil {
		t.Fatal(err)
	}
	if u := at(t, decoded(t, list[len(list)-2].data), "usage").(map[string]any); u["prompt_tokens_details"] != nil ||
		u["prompt_tokens"] == nil {
		t.Errorf("usage %v", u)
	}
}

// samples returns a metrics page's names with the names of their labels, and the type of each
// family.
func samples(page string) (names, types map[string]string) {
	names, types = map[string]string{}, map[string]string{}
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if decl, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(decl, " ")
			types[name] = kind
			continue
		}
		name, rest, found := strings.Cut(line, "{")
		if strings.HasPrefix(line, "#") || !found {
			continue
		}
		labels, _, _ := strings.Cut(rest, "}")
		var keys []string
		for pair := range strings.SplitSeq(labels, "\",") {
			key, _, _ := strings.Cut(pair, "=")
			keys = append(keys, key)
		}
		names[name] = strings.Join(keys, ",")
	}
	return names, types
}

func TestMetricsAreThoseOfVLLM(t *testing.T) {
	e := start(t)
	object(t, post(t, e, "/v1/chat/completions", chatBody(strings.Repeat("hello ", 30), "")), 200)
	object(t, post(t, e, "/v1/chat/completions", chatBody(strings.Repeat("hello ", 30), "")), 200)
	const idle = `vllm:num_requests_running{engine="0",model_name="sim"} 0.0`
	var page string
	eventually(t, "the scheduler is through with an answer that has been read", func() bool {
		page = get(t, e, "/metrics")
		return strings.Contains(page, idle+"\n")
	})
	got, gotTypes := samples(page)
	want, wantTypes := samples(golden(t, "metrics.txt"))
	for name, kind := range gotTypes {
		if wantTypes[name] != kind {
			t.Errorf("%s is a %s, want %q", name, kind, wantTypes[name])
		}
	}
	for name, labels := range got {
		if name == "vllm:cache_config_info" {
			continue // vLLM has many more labels
		}
		if sorted(want[name]) != sorted(labels) {
			t.Errorf("%s has labels %s, want %q", name, labels, want[name])
		}
	}
	for _, line := range []string{
		`vllm:prompt_tokens_total{engine="0",model_name="sim"} 106.0`,
		`vllm:prefix_cache_hits_total{engine="0",model_name="sim"} 48.0`,
		`vllm:generation_tokens_total{engine="0",model_name="sim"} 64.0`,
		`vllm:request_success_total{engine="0",model_name="sim",finished_reason="stop"} 2.0`,
		`vllm:time_to_first_token_seconds_count{engine="0",model_name="sim"} 2.0`,
		`vllm:time_to_first_token_seconds_bucket{engine="0",model_name="sim",le="+Inf"} 2.0`,
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}

func sorted(labels string) string {
	keys := strings.Split(labels, ",")
	slices.Sort(keys)
	return strings.Join(keys, ",")
}

func get(t *testing.T, e *Engine, path string) string {
	t.Helper()
	res, err := http.Get(e.URL() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%s: %s, %v", path, res.Status, err)
	}
	return string(body)
}
