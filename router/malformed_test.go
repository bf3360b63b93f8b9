package router_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
)

const small = `{"model":"sim","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`

// dial opens a connection of the test's own to the router.
func (s *site) dial() net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(soon))
	s.t.Cleanup(func() { c.Close() })
	return c
}

// answer reads one response. Status 0 means that the connection was closed without a response.
func answer(t *testing.T, r *bufio.Reader) (status int, body []byte) {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil {
		t.Fatalf("status %d, body cut: %v", resp.StatusCode, err)
	}
	return resp.StatusCode, body
}

func post(path, head, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", path, head, len(body), body)
}

// enveloped checks that body is an error in the envelope of path's API. enveloped returns the
// message.
func enveloped(t *testing.T, path string, body []byte) (message string) {
	t.Helper()
	var e struct {
		Type  string
		Error struct{ Type, Message string }
	}
	if err := json.Unmarshal(body, &e); err != nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Fatalf("%s: no error envelope: %s", path, body)
	}
	if anthropic := strings.HasPrefix(path, "/v1/messages"); anthropic != (e.Type == "error") {
		t.Errorf("%s: the envelope of another API: %s", path, body)
	}
	return e.Error.Message
}

func TestBadRequestsGetClearErrors(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	for _, c := range []struct {
		name, path, head, body string
		status                 int
		says, code, param      string
	}{
		{"no body", "/v1/chat/completions", "", "", 400, "empty", "invalid_json", ""},
		{"cut JSON", "/v1/chat/completions", "", `{"model":`, 400, "byte 9", "invalid_json", ""},
		{"cut JSON", "/v1/messages", "", `{"model":`, 400, "byte 9", "invalid_json", ""},
		{"cut JSON", "/v1/responses", "", `{"model":`, 400, "byte 9", "invalid_json", ""},
		{"array", "/v1/completions", "", `[1]`, 400, "object", "invalid_type", ""},
		{"model is a number", "/v1/embeddings", "", `{"model":1,"input":"x"}`, 400, "model", "invalid_type", "model"},
		{"messages is an object", "/v1/chat/completions", "", `{"model":"sim","messages":{}}`, 400, "messages", "invalid_type", "messages"},
		{"stream is a string", "/v1/chat/completions", "", `{"model":"sim","stream":"yes","messages":[]}`, 400, "stream", "invalid_type", "stream"},
		{"invalid UTF-8", "/v1/chat/completions", "", "{\"model\":\"sim\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", 400, "UTF-8", "invalid_json", ""},
		{"deep nesting", "/v1/chat/completions", "", `{"model":"sim","x":` + deep + `,"messages":[]}`, 400, "nested", "request_too_complex", ""},
		{"model twice", "/v1/chat/completions", "", `{"model":"sim","model":"sim","messages":[]}`, 400, "twice", "invalid_value", "model"},
		{"trailing bytes", "/v1/chat/completions", "", small + "x", 400, "after the end", "invalid_json", ""},
		{"no model", "/v1/chat/completions", "", `{"messages":[]}`, 400, "model", "missing_required_parameter", "model"},
		{"unknown model", "/v1/chat/completions", "", `{"model":"nope","messages":[]}`, 404, "nope", "model_not_found", "model"},
		{"unknown model", "/v1/messages", "", `{"model":"nope","messages":[],"max_tokens":1}`, 404, "nope", "model_not_found", "model"},
		{"unknown path", "/v2/nothing", "", small, 404, "endpoint", "unknown_path", ""},
		{"compressed", "/v1/chat/completions", "Content-Encoding: gzip\r\n", small, 400, "Content-Encoding", "unsupported_encoding", "Content-Encoding"},
		{"deadline", "/v1/chat/completions", "x-cgn-deadline-ms: soon\r\n", small, 400, "x-cgn-deadline-ms", "invalid_value", "x-cgn-deadline-ms"},
		{"response nobody stored", "/v1/responses", "", `{"model":"sim","input":"x","previous_response_id":"resp_none"}`, 404, "", "", ""},
	} {
		t.Run(c.name+c.path, func(t *testing.T) {
			conn := s.dial()
			io.WriteString(conn, post(c.path, c.head, c.body))
			status, body := answer(t, bufio.NewReader(conn))
			if status != c.status {
				t.Fatalf("status %d, want %d: %s", status, c.status, body)
			}
			if m := enveloped(t, c.path, body); !strings.Contains(m, c.says) {
				t.Errorf("message %q does not say %q", m, c.says)
			}
			if c.path == "/v1/messages" || c.code == "" {
				return // Anthropic's envelope has no code, and engines have their own
			}
			var e struct{ Error struct{ Code, Param *string } }
			if err := json.Unmarshal(body, &e); err != nil {
				t.Fatal(err)
			}
			if code := e.Error.Code; code == nil || *code != c.code {
				t.Errorf("the code is not %s: %s", c.code, body)
			}
			if param := e.Error.Param; (param == nil) != (c.param == "") || param != nil && *param != c.param {
				t.Errorf("the param is not %s: %s", c.param, body)
			}
		})
	}
}

func TestShortBodyIsNamed(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	conn := s.dial()
	whole := post("/v1/chat/completions", "", small)
	io.WriteString(conn, whole[:len(whole)-10])
	conn.(*net.TCPConn).CloseWrite()
	status, body := answer(t, bufio.NewReader(conn))
	if m := enveloped(t, "/v1/chat/completions", body); status != 400 || !strings.Contains(m, "Content-Length") {
		t.Errorf("%d: %s", status, m)
	}
}

func TestHugeRequestsAreRefused(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	t.Run("100 MB body", func(t *testing.T) {
		conn := s.dial()
		go func() { // the refusal comes while the body is being sent
			fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 100<<20)
			piece := bytes.Repeat([]byte("a"), 1<<20)
			for range 100 {
				conn.Write(piece)
			}
		}()
		status, body := answer(t, bufio.NewReader(conn))
		if status != 413 {
			t.Fatalf("status %d: %s", status, body)
		}
		enveloped(t, "/v1/chat/completions", body)
	})
	t.Run("1 MB head", func(t *testing.T) {
		conn := s.dial()
		go fmt.Fprintf(conn, "GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Long: %s\r\n\r\n", strings.Repeat("a", 1<<20))
		if status, body := answer(t, bufio.NewReader(conn)); status != 431 {
			t.Fatalf("status %d: %s", status, body)
		}
	})
}

func TestOddConnections(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	t.Run("pipelined", func(t *testing.T) {
		conn := s.dial()
		io.WriteString(conn, strings.Repeat(post("/v1/chat/completions", "", small), 5))
		r := bufio.NewReader(conn)
		for i := range 5 {
			if status, body := answer(t, r); status != 200 {
				t.Fatalf("request %d: status %d: %s", i, status, body)
			}
		}
	})
	t.Run("half-closed in the middle of a body", func(t *testing.T) {
		conn := s.dial()
		io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
		conn.(*net.TCPConn).CloseWrite()
		if status, body := answer(t, bufio.NewReader(conn)); status != 0 && status != 400 {
			t.Fatalf("status %d: %s", status, body)
		}
	})
	t.Run("half-closed behind the request", func(t *testing.T) {
		conn := s.dial()
		io.WriteString(conn, post("/v1/chat/completions", "", small))
		conn.(*net.TCPConn).CloseWrite() // counts as a departure, unless the answer was quicker
		if status, body := answer(t, bufio.NewReader(conn)); status != 0 && status != 200 {
			t.Fatalf("status %d: %s", status, body)
		}
	})
	t.Run("not HTTP", func(t *testing.T) {
		conn := s.dial()
		io.WriteString(conn, "\x16\x03\x01\x00\xa5garbage\r\n\r\n")
		if status, body := answer(t, bufio.NewReader(conn)); status != 0 && status != 400 {
			t.Fatalf("status %d: %s", status, body)
		}
	})
	t.Run("chunked body", func(t *testing.T) {
		conn := s.dial()
		fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "+
			"chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(small), small)
		if status, body := answer(t, bufio.NewReader(conn)); status != 200 {
			t.Fatalf("status %d: %s", status, body)
		}
	})
	t.Run("wrong method", func(t *testing.T) {
		conn := s.dial()
		io.WriteString(conn, "GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n")
		if status, body := answer(t, bufio.NewReader(conn)); status != 405 {
			t.Fatalf("status %d: %s", status, body)
		}
	})
}

func TestSlowAndTooManyClientsAreCut(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1), func(c *router.Config) {
		c.Limits.HeaderTimeout = config.Duration(100 * time.Millisecond)
		c.Limits.BodyTimeout = config.Duration(200 * time.Millisecond)
		c.Limits.MaxConnections = 8
	})
	t.Run("slow head", func(t *testing.T) {
		conn := s.dial()
		io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost:")
		io.Copy(io.Discard, conn) // returns when the router has closed the connection
	})
	t.Run("slow body", func(t *testing.T) {
		conn := s.dial()
		io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
		io.Copy(io.Discard, conn)
	})
	if n := s.metrics().sum("cgn_router_client_cut_total", `reason="slow_request"`); n < 2 {
		t.Errorf("%v slow requests counted, want 2", n)
	}
	t.Run("too many connections", func(t *testing.T) {
		eventually(t, "a connection is turned away", func() bool {
			for range 8 { // the connections of the previous round are cut by now, or soon
				s.dial()
			}
			conn := s.dial()
			defer conn.Close()
			status, body := answer(t, bufio.NewReader(conn))
			return status == 503 && enveloped(t, "", body) != ""
		})
		if n := s.metrics().sum("cgn_router_client_cut_total", `reason="too_many"`); n < 1 {
			t.Error("a connection that was turned away is not counted")
		}
	})
}
