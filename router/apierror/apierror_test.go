package apierror

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/scan"
)

var allAPIs = []scan.API{
	scan.Chat, scan.Completions, scan.Embeddings, scan.Responses, scan.Messages, scan.CountTokens,
	scan.Rerank, scan.Score, scan.Tokenize, scan.Detokenize, scan.Audio, scan.Other,
}

func TestEnvelopes(t *testing.T) {
	notFound := ModelNotFound([]byte("gpt"))
	busy := &Error{Status: 503, Code: "overloaded", Message: "busy", RetryAfterSeconds: 1, RequestID: "req_1",
		Sequence: 7}
	for _, c := range []struct {
		name, got, want string
	}{
		{"openai body", string(Body(nil, scan.Chat, notFound)),
			"{\"error\":{\"message\":\"the model `gpt` does not exist here; GET /v1/models lists those that do\",\"type\":\"not_found_error\",\"param\":\"model\",\"code\":\"model_not_found\"}}"},
		{"responses body", string(Body(nil, scan.Responses, busy)), `{"error":{"message":"busy","type":"service_unavailable","param":null,"code":"overloaded"}}`},
		{"anthropic body", string(Body(nil, scan.Messages, busy)), `{"type":"error","error":{"type":"overloaded_error","message":"busy"},"request_id":"req_1"}`},
		{"openai event", string(StreamEvent(nil, scan.Completions, busy)), `data: {"error":{"message":"busy","type":"service_unavailable","param":null,"code":"overloaded"}}` + "\n\n"},
		{"anthropic event", string(StreamEvent(nil, scan.Messages, &Error{Status: 502, Message: "gone"})),
			"event: error\n" + `data: {"type":"error","error":{"type":"api_error","message":"gone"}}` + "\n\n"},
		{"responses event", string(StreamEvent(nil, scan.Responses, busy)), "event: error\n" +
			`data: {"type":"error","code":"overloaded","message":"busy","param":null,"sequence_number":7,"error":{"message":"busy","type":"service_unavailable","param":null,"code":"overloaded"}}` + "\n\n"},
		{"own type", string(Body([]byte("x"), scan.Other, &Error{Status: 400, Type: "t", Message: "m"})), `x{"error":{"message":"m","type":"t","param":null,"code":null}}`},
	} {
		if c.got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, c.got, c.want)
		}
	}
}

func TestTypes(t *testing.T) {
	for status, want := range map[int][2]string{
		400: {"invalid_request_error", "invalid_request_error"}, 401: {"authentication_error", "authentication_error"},
		403: {"permission_error", "permission_error"}, 404: {"not_found_error", "not_found_error"},
		405: {"invalid_request_error", "invalid_request_error"}, 413: {"request_too_large", "request_too_large"},
		429: {"rate_limit_error", "rate_limit_error"}, 500: {"server_error", "api_error"}, 502: {"upstream_error", "api_error"},
		503: {"service_unavailable", "overloaded_error"}, 504: {"timeout_error", "timeout_error"},
	} {
		if openAI, anthropic := typesOf(status); openAI != want[0] || anthropic != want[1] {
			t.Errorf("%d: %s, %s", status, openAI, anthropic)
		}
	}
}

func TestFromScan(t *testing.T) {
	var r scan.Request
	err := scan.Scan(scan.Chat, []byte(`{"model":1}`), &r)
	e := FromScan(err)
	if e.Status != 400 || e.Param != "model" || !strings.Contains(e.Message, "must be a string, not a number") {
		t.Errorf("got %+v", e)
	}
	if e := FromScan(nil); e.Status != 400 || e.Message == "" ||
		!strings.HasPrefix(e.Error(), "400 invalid_request_error: ") {
		t.Errorf("got %+v", e)
	}
}

// FuzzBytes feeds any bytes as texts. Each envelope must stay one JSON document and each event one
// frame.
func FuzzBytes(f *testing.F) {
	f.Add("plain", "p", "c")
	f.Add("\x00\n\r\"\\\xff\u2028", "a\nb", "\xc3\x28")
	f.Fuzz(func(t *testing.T, message, param, code string) {
		e := &Error{Status: 400, Message: message, Param: param, Code: code, RequestID: code}
		for _, api := range allAPIs {
			if body := Body(nil, api, e); !json.Valid(body) {
				t.Fatalf("%v body %q", api, body)
			}
			event := string(StreamEvent(nil, api, e))
			frame, ok := strings.CutSuffix(event, "\n\n")
			data := strings.TrimPrefix(strings.TrimPrefix(frame, "event: error\n"), "data: ")
			if !ok || strings.ContainsAny(data, "\r\n") || !json.Valid([]byte(data)) {
				t.Fatalf("%v event %q", api, event)
			}
		}
	})
}

func TestNoAllocation(t *testing.T) {
	dst := make([]byte, 0, 1<<10)
	e := &Error{Status: 503, Message: "all nodes are busy – try again", Code: "overloaded"}
	if n := testing.AllocsPerRun(50, func() {
		dst = StreamEvent(Body(dst[:0], scan.Chat, e), scan.Responses, e)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
