package instant

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/sse"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func started(t *testing.T) (*Engine, *http.Client) {
	e, err := Start(Config{})
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(func() { transport.CloseIdleConnections(); e.Close() })
	return e, &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

func TestStamp(t *testing.T) {
	b := make([]byte, StampLen+3)
	s := Stamp{Seq: 12345, Stream: 1 << 31, Sent: time.Unix(0, time.Now().UnixNano())}
	s.Put(b)
	if got, ok := ParseStamp(b); !ok || got != s {
		t.Errorf("%s: %+v", b, got)
	}
	for _, bad := range []string{"", " because", strings.Repeat("x", StampLen), string(b[:StampLen-1])} {
		if _, ok := ParseStamp([]byte(bad)); ok {
			t.Errorf("%q is a stamp", bad)
		}
	}
}

// TestProbes: the requests that routers send before any other are answered.
func TestProbes(t *testing.T) {
	e, c := started(t)
	for path, want := range map[string]string{
		"/health": "", "/v1/models": `"owned_by":"vllm"`, "/server_info": Model, "/get_server_info": Model,
		"/model_info": Model, "/get_model_info": Model,
		"/version": "0.32.0", "/metrics": "vllm:num_requests_running", "/load": "server_load",
	} {
		resp, err := c.Get(e.URL() + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
	if resp, err := c.Get(e.URL() + "/nothing"); err != nil || resp.StatusCode != 404 {
		t.Errorf("an unknown path: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
}

// shape returns a document with only its keys.
func shape(v any) string {
	doc, ok := v.(map[string]any)
	if !ok {
		return ""
	}
	b, _ := json.Marshal(doc) // sorts the keys
	_ = json.Unmarshal(b, &doc)
	keys := ""
	for _, k := range []string{"id", "object", "created", "model", "choices", "usage"} {
		if _, ok := doc[k]; ok {
			keys += k + " "
		}
	}
	return keys
}

func TestAnswerLooksLikeVLLM(t *testing.T) {
	golden, err := os.ReadFile("../../sim/engine/testdata/chat_1.json")
	if err != nil {
		t.Fatal(err)
	}
	e, c := started(t)
	long := strings.Repeat("word ", 50000)
	for _, chunked := range []bool{false, true} {
		body := io.Reader(strings.NewReader(fmt.Sprintf(
			`{"messages":[{"role":"user","content":%q}],"max_completion_tokens":7}`,
			long+"instant: prompt=62500 cached=60000")))
		if chunked {
			body = struct{ io.Reader }{body} // a body of unknown length
		}
		resp, err := c.Post(e.URL()+chatPath, "application/json", body)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		var want, got any
		if json.Unmarshal(golden, &want) != nil || json.Unmarshal(text, &got) != nil || shape(got) != shape(want) {
			t.Errorf("%s", text)
		}
		if len(text) < 400 || len(text) > 800 ||
			!strings.Contains(string(text),
				`"prompt_tokens":62500,"total_tokens":62507,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":60000}`) {
			t.Errorf("%d bytes: %s", len(text), text)
		}
	}
}

func TestStreams(t *testing.T) {
	e, c := started(t)
	began := time.Now()
	for name, want := range map[string]int{"pace=1000": 5, "pace=0": 40, "pace=200 prompt=3": 5, "step=1": 3} {
		more := ""
		if strings.Contains(name, "prompt=3") {
			more = `,"stream_options":{"include_usage":true}`
		}
		body := fmt.Sprintf(`{"messages":[{"role":"user","content":"instant: %s"}],"max_tokens":%d,"stream":true%s}`,
			name, want, more)
		resp, err := c.Post(e.URL()+chatPath, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		e.Step()
		tokens, done, usage := 0, false, false
		var scanner sse.Scanner
		buf := make([]byte, 4096)
		for err = nil; err == nil; {
			var n int
			n, err = resp.Body.Read(buf)
			scanner.Feed(buf[:n], func(ev sse.Event) {
				done = done || ev.IsDone()
				usage = usage || strings.Contains(string(ev.Data), `"usage":{"prompt_tokens":3`)
				if _, text, ok := strings.Cut(string(ev.Data), `"content":"`); ok && text[0] != '"' {
					s, ok := ParseStamp([]byte(text))
					if !ok || int(s.Seq) != tokens || s.Sent.Before(began) || s.Sent.After(time.Now()) {
						t.Errorf("%s: token %d is %q", name, tokens, text)
					}
					if len(ev.Data) < 180 || len(ev.Data) > 240 {
						t.Errorf("an event of %d bytes", len(ev.Data))
					}
					tokens++
					e.Step()
				}
			})
		}
		resp.Body.Close()
		if err != io.EOF || tokens != want || !done || usage != (more != "") {
			t.Errorf("%s: %d tokens, done %v, usage %v, %v", name, tokens, done, usage, err)
		}
		for len(e.steps) > 0 {
			<-e.steps
		}
	}
}

func TestLeft(t *testing.T) {
	left := make(chan time.Time, 1)
	e, err := Start(Config{Left: func(at time.Time) { left <- at }})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, user := range []string{`"stream":true,"prompt":"instant: pace=3600000000"`,
		`"stream":true,"prompt":"instant: hang=1"`, `"prompt":"instant: hang=1"`} {
		conn, err := net.Dial("tcp", e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		body := `{"max_tokens":3,` + user + `}`
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(body), body)
		if !strings.Contains(user, "hang") {
			if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
				t.Fatal(line, err)
			}
		}
		conn.Close()
		<-left
	}
	if e.Requests() != 3 {
		t.Errorf("%d requests", e.Requests())
	}
}
