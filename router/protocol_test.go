package router_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestDoubtfulRequestsAreRefused checks requests that a proxy and this router may read differently,
// or end differently. The requests get an error, and nothing behind them is read.
func TestDoubtfulRequestsAreRefused(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	piece := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(small), small)
	for name, c := range map[string]struct {
		request string
		status  int
		says    string
	}{
		"length and chunks": {"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + piece, 400, "Transfer-Encoding"},
		"chunks and length": {"POST /v1/messages HTTP/1.1\r\nHost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n", 400, "Transfer-Encoding"},
		"chunks in 1.0":     {"POST /v1/messages HTTP/1.0\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400, "HTTP/1.1"},
		"no Host":           {"POST /v1/messages HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 400, "Host is missing"},
		"two Hosts":         {"POST /v1/messages HTTP/1.1\r\nHost: x\r\nHost: y\r\nContent-Length: 2\r\n\r\n{}", 400, "Host is given twice"},
		"two lengths":       {"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400, "Content-Length is given twice"},
		"a signed length":   {"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\n{}", 400, "Content-Length is not"},
		"compressed":        {"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n{}", 400, "Transfer-Encoding is not chunked"},
		"a bad chunk":       {"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", 400, "a chunk of the body"},
		"HTTP/2":            {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/1.1"},
		"HTTP/3":            {"GET /v1/models HTTP/3.0\r\nHost: x\r\n\r\n", 505, "HTTP/1.1"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := s.dial()
			io.WriteString(conn, c.request+"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
			conn.(*net.TCPConn).CloseWrite()
			r := bufio.NewReader(conn)
			status, body := answer(t, r)
			path, _, _ := strings.Cut(c.request[strings.Index(c.request, " ")+1:], " ")
			if message := enveloped(t, path, body); status != c.status || !strings.Contains(message, c.says) {
				t.Errorf("%d %s", status, body)
			}
			if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
				t.Errorf("the connection goes on: %q, %v", rest, err)
			}
		})
	}
	for _, e := range s.engines {
		for _, r := range e.Requests() {
			if r.Path == "/v1/messages" {
				t.Error("it was passed on")
			}
		}
	}
}

// TestWrongPathsAndMethods checks that the error names the right path or method.
func TestWrongPathsAndMethods(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	for _, c := range []struct {
		method, path, body string
		status             int
		says, allow        string
	}{
		{"GET", "/v1/chat/completions", "", 405, "GET is not allowed for /v1/chat/completions; use POST", "POST"},
		{"PUT", "/v1/messages", "{}", 405, "use POST", "POST"},
		{"POST", "/v1/models", "{}", 405, "use GET, HEAD", "GET, HEAD"},
		{"DELETE", "/v1/models/sim", "", 405, "use GET, HEAD", "GET, HEAD"},
		{"PATCH", "/v1/responses/resp_1", "", 405, "DELETE", "GET, HEAD, POST, DELETE"},
		{"POST", "/v1/chat/completions/", small, 404, "it is /v1/chat/completions", ""},
		{"GET", "/v1/models/", "", 404, "it is /v1/models", ""},
		{"POST", "/v1/messages/", small, 404, "it is /v1/messages", ""},
		{"POST", "/chat/completions", small, 404, "it is /v1/chat/completions", ""},
		{"POST", "/v1/v1/completions", small, 404, "it is /v1/completions", ""},
		{"POST", "/v1/chat/completion", small, 404, "it is /v1/chat/completions", ""},
		{"POST", "/V1/chat/completions", small, 404, "it is /v1/chat/completions", ""},
		{"POST", "/v1/mesages", small, 404, "it is /v1/messages", ""},
		{"GET", "/metrics", "", 404, "it is at the router's admin port, 127.0.0.1:0 (router.admin)", ""},
		{"GET", "/debug/fleet", "", 404, "it is at the router's admin port, 127.0.0.1:0 (router.admin)", ""},
		{"GET", "/model", "", 404, "it is /v1/models", ""},
		{"GET", "/v1/files", "", 404, "names a `model`", ""},
		{"POST", "/v1/files", "", 404, "names a `model`", ""},
		{"POST", "/v1/batches", `{"endpoint":"/v1/responses"}`, 404, "names a `model`", ""},
		{"DELETE", "/v1/files/file-1", "", 404, "names a `model`", ""},
		{"POST", "/v1/load_lora_adapter", small, 404, "no such endpoint", ""},
		{"GET", "/nothing", "", 404, "no such endpoint here; there are /detokenize, ", ""},
	} {
		r := s.ask(c.method, c.path, c.body)
		path := strings.TrimSuffix(c.path, "/")
		if message := enveloped(t, path, r.body); r.status != c.status || !strings.Contains(message, c.says) ||
			r.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: %v, Allow: %s", c.method, c.path, r, r.header.Get("Allow"))
		}
		if r.node() != "" {
			t.Errorf("%s %s was passed on", c.method, c.path)
		}
	}
}

// TestModelWithoutNodes checks that a known model without nodes is not called unknown.
func TestModelWithoutNodes(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t).endpoint
	if err := dialEtcd(t, etcd).PutModel(t.Context(), "large", cluster.Model{Aliases: []string{"big"}}); err != nil {
		t.Fatal(err)
	}
	s := follow(t, etcd, 0)
	for _, name := range []string{"large", "big"} {
		eventually(t, "it is known", func() bool {
			r := s.ask(http.MethodGet, "/v1/models/"+name, "")
			return r.status == 503 && r.code() == "no_eligible_node" && r.header.Get("Retry-After") != ""
		})
	}
	eventually(t, "etcd has told of its nodes too, and the model is unknown", func() bool {
		r := s.ask(http.MethodGet, "/v1/models/small", "")
		return r.status == 404 && r.code() == "model_not_found"
	})
}

// TestHalfClosedClients checks that a half-closed connection counts as a departure. The connection
// is closed without an answer, and the engine is told.
func TestHalfClosedClients(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	s.engines[0].SetFault(&engine.Fault{Hang: true})
	conn := s.dial()
	io.WriteString(conn, post("/v1/chat/completions", "", small))
	eventually(t, "the engine has it", func() bool { // its checks are in flight too at times
		return slices.ContainsFunc(s.engines[0].Requests(), func(r engine.Request) bool {
			return r.Path == "/v1/chat/completions"
		})
	})
	conn.(*net.TCPConn).CloseWrite()
	if page, err := io.ReadAll(conn); err != nil || len(page) > 0 {
		t.Errorf("%q, %v", page, err)
	}
	eventually(t, "the engine is told", func() bool { return s.engines[0].Stats().Aborted > 0 })
	if n := s.metrics().sum("cgn_router_client_cut_total", `reason="left"`); n != 1 {
		t.Errorf("%v clients left", n)
	}
	// A request that needs no node is still answered.
	conn = s.dial()
	io.WriteString(conn, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
	conn.(*net.TCPConn).CloseWrite()
	var list struct{ Data []any }
	if status, body := answer(t, bufio.NewReader(conn)); status != 200 || json.Unmarshal(body, &list) != nil ||
		len(list.Data) != 1 {
		t.Errorf("%d %s", status, body)
	}
}
