package plan

import (
	"testing"

	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
)

// asked returns a request with this body.
func asked(t *testing.T, api scan.API, body string) *request.Request {
	t.Helper()
	r := request.New()
	r.API = api
	r.Own([]byte(body), nil)
	if err := r.Read(nil, nil); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return r
}

// TestUnfit checks which answers can be judged, and which clients want the log-probabilities
// themselves.
func TestUnfit(t *testing.T) {
	for members, want := range map[string]string{
		``: "", `,"n":1,"tools":null,"response_format":null`: "", `,"tools":[]`: "",
		`,"tools":[{}],"tool_choice":"none"`: "", `,"response_format":{"type":"text"}`: "", `,"guided_json":null`: "",
		`,"tools":[{}]`: "tools", `,"functions":[{}]`: "tools", `,"tools":[{}],"tool_choice":"auto"`: "tools",
		`,"response_format":{"type":"json_object"}`: "format", `,"structured_outputs":{"regex":"a"}`: "format",
		`,"guided_choice":["a"]`: "format", `,"regex":"a"`: "format",
		`,"grammar":"root"`: "format", `,"grammar":""`: "",
		`,"n":2`: "choices", `,"best_of":3`: "choices", `,"use_beam_search":true`: "choices",
		`,"use_beam_search":false`: "", `,"\u006e":2`: "choices",
	} {
		if got := unfit(asked(t, scan.Chat, `{"model":"m","messages":[]`+members+`}`)); got != want {
			t.Errorf("%s: %q, want %q", members, got, want)
		}
	}
	for members, want := range map[string]string{
		`"prompt":"a"`: "", `"prompt":[1,2]`: "", `"prompt":["a"]`: "choices", `"prompt":[ [1],[2]]`: "choices",
		`"prompt":"a","echo":true`: "echo", `"prompt":"a","echo":false`: "",
	} {
		if got := unfit(asked(t, scan.Completions, `{"model":"m",`+members+`}`)); got != want {
			t.Errorf("%s: %q, want %q", members, got, want)
		}
	}
	if got := unfit(asked(t, scan.Responses, `{"model":"m","input":"a"}`)); got != "api" {
		t.Errorf("responses: %q", got)
	}
	for members, want := range map[string]bool{
		``: false, `,"logprobs":null`: false, `,"logprobs":false`: false,
		`,"logprobs":true`: true, `,"logprobs":0`: true,
	} {
		if got := asksLogprobs(asked(t, scan.Chat, `{"model":"m","messages":[]`+members+`}`)); got != want {
			t.Errorf("%s: asks %v", members, got)
		}
	}
}

// TestChoiceOfADirectPlanAllocatesNothing checks the path of a request for a model without a chain.
func TestChoiceOfADirectPlanAllocatesNothing(t *testing.T) {
	p := start(t, 1)
	p.parts.Cascades.Enabled = true
	r := asked(t, scan.Chat, `{"model":"sim","messages":[]}`)
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := p.choose(r).(Direct); !ok {
			t.Fatal("another plan")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
