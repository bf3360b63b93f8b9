package front

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestRequestAndAnswerPassThrough(t *testing.T) {
	o := testOptions(t)
	o.Authorization = "Bearer engine"
	engineOf(t, &o, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Engine", "1")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s %s|%s|%s|%s|%s|%s", r.Method, r.RequestURI, body, r.Header.Get("Authorization"),
			r.Header.Get("Traceparent"), r.Header.Get("X-Cgn-Tenant"), r.Header.Get("Content-Type"))
	})
	_, url, client := serve(t, o)
	req, _ := http.NewRequest("POST", url+"/v1/chat/completions?x=1", strings.NewReader(`{"model":"m"}`))
	for k, v := range map[string]string{"Authorization": "Bearer client", "Traceparent": "00-1", "X-Cgn-Tenant": "evil",
		"Content-Type": "application/json"} {
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, _ := io.ReadAll(resp.Body)
	want := `POST /v1/chat/completions?x=1|{"model":"m"}|Bearer engine|00-1||application/json`
	if string(got) != want || resp.StatusCode != http.StatusTeapot || resp.Header.Get("X-Engine") != "1" {
		t.Errorf("%d %s\nwant %s", resp.StatusCode, got, want)
	}
	awaitCount(t, o.Counters.Requests.WithLabelValues("418"), 1)
}

func TestForwardAuthNeverFallsBackToTheAgentsKey(t *testing.T) {
	o := testOptions(t)
	o.Authorization, o.ForwardAuth = "Bearer engine", true
	engineOf(t, &o, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header["Authorization"]) })
	_, url, client := serve(t, o)
	for sent, want := range map[string]string{"Bearer client": "[Bearer client]", "": "[]"} {
		req, err := http.NewRequest("GET", url+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		if sent != "" {
			req.Header.Set("Authorization", sent)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(got) != want {
			t.Errorf("sent %q: the engine got %s, %v", sent, got, err)
		}
	}
}

func TestConnectionPerRequest(t *testing.T) {
	o := testOptions(t)
	o.EngineOnce = true
	engineOf(t, &o, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Close) })
	_, url, client := serve(t, o)
	for range 2 {
		if _, told := post(t, client, url+"/v1/completions", "{}"); told != "true" {
			t.Errorf("the engine was told to close: %s", told)
		}
	}
}

func TestOverloadPassesThrough(t *testing.T) {
	o := testOptions(t)
	engineOf(t, &o, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		http.Error(w, "busy", http.StatusServiceUnavailable)
	})
	_, url, client := serve(t, o)
	resp, body := post(t, client, url+"/v1/completions", "{}")
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "7" || body != "busy\n" {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
}

func TestStreamIsNotBuffered(t *testing.T) {
	o := testOptions(t)
	next := make(chan struct{})
	engineOf(t, &o, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
	})
	s, url, client := serve(t, o)
	resp, err := client.Post(url+"/v1/completions", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for i := range 3 {
		if !lines.Scan() || lines.Text() != fmt.Sprintf("data: %d", i) || !lines.Scan() {
			t.Fatalf("event %d: %q", i, lines.Text())
		}
		if s.InFlight() != 1 {
			t.Errorf("in flight %d", s.InFlight())
		}
		next <- struct{}{}
	}
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("after the end: %q, %v", lines.Text(), lines.Err())
	}
	if err := s.Drain(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestBrokenStreamIsCut(t *testing.T) {
	o := testOptions(t)
	engineOf(t, &o, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	_, url, client := serve(t, o)
	resp, err := client.Post(url+"/v1/completions", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) || string(body) != "data: 1\n\n" {
		t.Errorf("%q, %v: must not look like a clean end", body, err)
	}
	eventually(t, "counted", func() bool { return counted(o.Counters.Failures.WithLabelValues("body", "reset")) == 1 })
}

func TestClientThatLeavesCancelsTheEngine(t *testing.T) {
	for name, head := range map[string]bool{"before headers": false, "in a silent stream": true} {
		t.Run(name, func(t *testing.T) {
			leave(t, head)
		})
	}
}

// leave makes a client leave, before or after the head of its answer. leave waits until the engine
// notices. The engine has no other reason to end the request.
func leave(t *testing.T, head bool) {
	t.Helper()
	o := testOptions(t)
	o.Limits.KeepAlive, o.Limits.SlowReader = time.Hour, time.Hour
	o.Limits.Idle, o.Limits.Total = time.Hour, time.Hour
	arrived, canceled := make(chan struct{}), make(chan struct{})
	engineOf(t, &o, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if head {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: 1\n\n")
			w.(http.Flusher).Flush()
		}
		close(arrived)
		<-r.Context().Done()
		close(canceled)
	})
	s, url, client := serve(t, o)
	ctx, leave := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "POST", url+"/v1/completions", strings.NewReader("{}"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if resp, err := client.Do(req); err == nil {
			_, _ = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
	}()
	<-arrived
	leave()
	<-canceled
	<-done
	if err := s.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if n := counted(o.Counters.ClientLeft); n != 1 {
		t.Errorf("counted %v", n)
	}
}

func TestPaths(t *testing.T) {
	o := testOptions(t)
	engineOf(t, &o, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) })
	_, url, client := serve(t, o)
	for path, want := range map[string]int{
		"/v1/models": 200, "/tokenize": 200, "/metrics": 200, "/v1/audio/speech": 200, "/v1/chat/../models": 200,
		"/reset_prefix_cache": 404, "/v1/../reset_prefix_cache": 404, "/v1/%2e%2e/sleep": 404, "/": 404,
		"/v1/load_lora_adapter": 404, "/slots/1": 404, "//sleep": 404,
		"/server_info": 404,
	} {
		req, _ := http.NewRequest("GET", url, nil)
		req.URL.Opaque = path
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want || strings.Contains(string(body), "..") {
			t.Errorf("%s: %d %s, want %d", path, resp.StatusCode, body, want)
		}
	}
}

func TestServerInfo(t *testing.T) {
	o := testOptions(t)
	o.ServerInfo = true
	engineOf(t, &o, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) })
	_, url, client := serve(t, o)
	resp, err := client.Get(url + "/server_info")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 || string(body) != "/server_info" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

func TestHealth(t *testing.T) {
	o := testOptions(t)
	reason := ""
	o.Health = func() string { return reason }
	_, url, client := serve(t, o)
	for _, c := range []struct {
		reason, body string
		status       int
	}{{"", `{"status":"ok"}`, 200}, {"engine is loading", `{"reason":"engine is loading","status":"unavailable"}`,
		503}} {
		reason = c.reason
		resp, err := client.Get(url + "/health")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.status || string(body) != c.body {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	}
}

func TestLimits(t *testing.T) {
	o := testOptions(t)
	o.Limits.MaxRequests = 1
	arrived, finish := make(chan struct{}), make(chan struct{})
	engineOf(t, &o, func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-finish
	})
	s, url, client := serve(t, o)
	first := make(chan *http.Response, 1)
	go func() {
		resp, err := client.Post(url+"/v1/completions", "", nil)
		if err == nil {
			resp.Body.Close()
		}
		first <- resp
	}()
	<-arrived
	if resp, body := post(t, client, url+"/v1/completions", ""); resp.StatusCode != 503 ||
		resp.Header.Get("Retry-After") != "1" || !strings.Contains(body, "agent_full") {
		t.Errorf("second request: %d %s", resp.StatusCode, body)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Drain(ctx); err == nil || !strings.Contains(err.Error(), "1 requests in flight") {
		t.Errorf("drain: %v", err)
	}
	close(finish)
	if resp := <-first; resp == nil || resp.StatusCode != 200 {
		t.Errorf("first request: %v", resp)
	}
	if resp, body := post(t, client, url+"/v1/completions",
		strings.Repeat("x", o.Limits.MaxBody+1)); resp.StatusCode != 413 || !strings.Contains(body, "body_too_large") {
		t.Errorf("body: %d %s", resp.StatusCode, body)
	}
	req, _ := http.NewRequest("GET", url+"/health", nil)
	req.Header.Set("X-Long", strings.Repeat("x", o.Limits.MaxHeader))
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 431 {
		t.Errorf("header: %d", resp.StatusCode)
	}
}

func TestNotHTTP(t *testing.T) {
	o := testOptions(t)
	_, url, _ := serve(t, o)
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "what is this\r\n\r\n")
	answer, _ := io.ReadAll(c)
	if !strings.HasPrefix(string(answer), "HTTP/1.1 400") || !strings.Contains(string(answer), "bad_request") {
		t.Errorf("%s", answer)
	}
}

func TestShutdownCutsWhatDoesNotFinish(t *testing.T) {
	o := testOptions(t)
	arrived := make(chan struct{})
	engineOf(t, &o, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-r.Context().Done()
	})
	s, url, client := serve(t, o)
	result := make(chan error, 1)
	go func() {
		resp, err := client.Post(url+"/v1/completions", "", strings.NewReader("{}"))
		if err == nil {
			resp.Body.Close()
		}
		result <- err
	}()
	<-arrived
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-result; err == nil {
		t.Error("the cut request was answered")
	}
	if s.InFlight() != 0 {
		t.Errorf("in flight %d", s.InFlight())
	}
}

// TestDeadlineOfARouter checks that the engine's connection is closed when a router's deadline
// passes, and that the answer says so.
func TestDeadlineOfARouter(t *testing.T) {
	o := testOptions(t)
	left := make(chan struct{}, 2)
	engineOf(t, &o, func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Cgn-Deadline-Ms") != "" {
			t.Error("the engine gets the header")
		}
		<-r.Context().Done()
		left <- struct{}{}
	})
	_, url, client := serve(t, o)
	for _, ms := range []string{"50", "0"} {
		req, err := http.NewRequest("GET", url+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Cgn-Deadline-Ms", ms)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusGatewayTimeout {
			t.Errorf("%s ms: %d %s, %v", ms, resp.StatusCode, body, err)
		}
		if ms != "0" {
			<-left
		}
	}
}
