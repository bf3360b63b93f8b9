package front

import (
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

// TestAdapterChanges: a change of adapters reaches Options.Adapters, and its answer the client.
// Other requests to these paths are refused.
func TestAdapterChanges(t *testing.T) {
	o := testOptions(t)
	engineOf(t, &o, func(w http.ResponseWriter, r *http.Request) { t.Errorf("the engine gets %s", r.URL) })
	var got []AdapterChange
	o.Adapters = func(c AdapterChange) (int, string, []byte) {
		got = append(got, c)
		return 418, "text/x", []byte("as the engine says")
	}
	_, url, client := serve(t, o)
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/load_lora_adapter", `{"lora_name":"a","lora_path":"/p"}`, 418},
		{"POST", "/unload_lora_adapter", `{"lora_name":"a"}`, 418},
		{"GET", "/load_lora_adapter", "", 405},
		{"POST", "/load_lora_adapter", `{"lora_name":"a"}`, 400},
		{"POST", "/load_lora_adapter", `{"lora_path":"/p"}`, 400},
		{"POST", "/unload_lora_adapter", `[]`, 400},
		{"POST", "/unload_lora_adapter", `{"lora_name":"` + strings.Repeat("x", maxAdapterBody) + `"}`, 400},
		{"POST", "/v1/load_lora_adapter", `{"lora_name":"a","lora_path":"/p"}`, 404},
		{"POST", "/load_lora_adapter/", `{"lora_name":"a","lora_path":"/p"}`, 404},
	} {
		req, _ := http.NewRequest(c.method, url+c.path, strings.NewReader(c.body))
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s %s %.40s: %d %s", c.method, c.path, c.body, resp.StatusCode, answer)
		}
		if own := string(answer) == "as the engine says" && resp.Header.Get("Content-Type") == "text/x"; own !=
			(c.status == 418) {
			t.Errorf("%s %s: %q", c.method, c.path, answer)
		}
	}
	if want := []AdapterChange{{false, "a", "/p"}, {true, "a", ""}}; !slices.Equal(got, want) {
		t.Errorf("changes %+v", got)
	}
	o.Adapters = nil
	_, url, client = serve(t, o)
	resp, answer := post(t, client, url+"/load_lora_adapter", `{"lora_name":"a","lora_path":"/p"}`)
	if resp.StatusCode != 404 {
		t.Errorf("without adapters: %d %s", resp.StatusCode, answer)
	}
}

// TestShutdownLetsChangesAnswer: Shutdown cuts other connections, and waits for a change's answer.
func TestShutdownLetsChangesAnswer(t *testing.T) {
	o := testOptions(t)
	begun, goOn := make(chan struct{}), make(chan struct{})
	o.Adapters = func(AdapterChange) (int, string, []byte) {
		close(begun)
		<-goOn
		return 503, "text/x", []byte("the agent is stopping")
	}
	s, url, client := serve(t, o)
	other, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	io.WriteString(other, "GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
	answer := make([]byte, 1<<10)
	if n, err := other.Read(answer); err != nil || !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 200") {
		t.Fatalf("%q %v", answer[:n], err)
	}
	type result struct {
		body string
		err  error
	}
	results := make(chan result, 1)
	go func() {
		resp, err := client.Post(url+unloadAdapter, "", strings.NewReader(`{"lora_name":"a"}`))
		if err != nil {
			results <- result{"", err}
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		results <- result{string(body), err}
	}()
	<-begun
	closed := make(chan error, 1)
	go func() { closed <- s.Shutdown(t.Context()) }()
	io.Copy(io.Discard, other) // returns when Shutdown cuts
	s.mu.Lock()                // waits until all are cut
	close(goOn)
	s.mu.Unlock()
	if r := <-results; r.err != nil || r.body != "the agent is stopping" {
		t.Errorf("the client of the change got %q %v", r.body, r.err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestStrangersChangeNoAdapters: without certificates only processes of the host may.
func TestStrangersChangeNoAdapters(t *testing.T) {
	for at, want := range map[string]int{
		"127.0.0.1:5": 200, "[::1]:5": 200, "10.0.0.9:5": 403, "[2001:db8::1]:5": 403,
	} {
		for _, authenticated := range []bool{false, true} {
			o := testOptions(t)
			o.Authenticated = authenticated
			o.Adapters = func(AdapterChange) (int, string, []byte) { return 200, "", nil }
			s, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			var ctx fasthttp.RequestCtx
			addr, err := net.ResolveTCPAddr("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			ctx.Init(&fasthttp.Request{}, addr, nil)
			ctx.Request.Header.SetMethod("POST")
			ctx.Request.SetRequestURI("/unload_lora_adapter")
			ctx.Request.SetBodyString(`{"lora_name":"a"}`)
			s.changeAdapter(&ctx)
			wanted := want
			if authenticated {
				wanted = 200
			}
			if got := ctx.Response.StatusCode(); got != wanted {
				t.Errorf("from %s, with certificates %v: %d %s", at, authenticated, got, ctx.Response.Body())
			}
		}
	}
}
