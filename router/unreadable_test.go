package router_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/router"
)

// unreadable lists requests that the router cannot read to their end; %s is the path.
var unreadable = []struct {
	name, request string
	status        int
}{
	{"slow head", "POST %s HTTP/1.1\r\nHost:", 408},
	{"slow body", "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{", 408},
	{"slow body after 100", "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\nExpect: 100-continue\r\n\r\n{", 408},
	{"slow chunk", "POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", 408},
	{"slow chunk size", "POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5", 408},
	{"no chunk", "POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
	{"large body", "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n", 413},
	{"large chunk", "POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n400000\r\n", 413},
	{"large head", "POST %s HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("a", 1<<20), 431},
	{"no colon", "POST %s HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n", 400},
	{"no host", "POST %s HTTP/1.1\r\n\r\n", 400},
}

func impatient(c *router.Config) {
	c.Limits.HeaderTimeout, c.Limits.BodyTimeout = config.Duration(500*time.Millisecond),
		config.Duration(500*time.Millisecond)
	c.Limits.MaxBody, c.Limits.MaxBodyTotal = 1<<20, 2<<20
}

// final reads one response other than 100 Continue.
func final(t *testing.T, r *bufio.Reader) (status int, body []byte) {
	t.Helper()
	if status, body = answer(t, r); status == 100 {
		status, body = answer(t, r)
	}
	return status, body
}

// TestUnreadableRequestsGetTheirEnvelope checks the envelope, also for the second request of a
// connection after one of another API.
func TestUnreadableRequestsGetTheirEnvelope(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1), impatient)
	others := map[string]string{"/v1/messages": "/v1/chat/completions", "/v1/messages/count_tokens": "/v1/models",
		"/v1/responses": "/v1/messages"}
	for _, c := range unreadable {
		for path, other := range others {
			for _, before := range []string{"", post(other, "", small)} {
				t.Run(fmt.Sprint(c.name, path, len(before) > 0), func(t *testing.T) {
					t.Parallel()
					conn := s.dial()
					r := bufio.NewReader(conn)
					if before != "" {
						io.WriteString(conn, before)
						answer(t, r)
					}
					go fmt.Fprintf(conn, c.request, path)
					status, body := final(t, r)
					if status != c.status {
						t.Fatalf("status %d, want %d: %s", status, c.status, body)
					}
					enveloped(t, path, body)
				})
			}
		}
	}
}

// line is the tested part of an access log line.
type line struct {
	ID, Method, API, End, Time string
	Status                     int
	Duration                   *float64 `json:"duration_seconds"`
}

// lines returns the access log so far, without a line that is being written.
func lines(t *testing.T, file string) (all []line) {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for text := range bytes.Lines(page) {
		if !bytes.HasSuffix(text, []byte("\n")) {
			break
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil || l.Time == "" || l.Duration == nil {
			t.Fatalf("%s: %v", text, err)
		}
		all = append(all, l)
	}
	return all
}

// TestEveryAnswerIsLoggedAndCounted checks answers of the router and of engines.
func TestEveryAnswerIsLoggedAndCounted(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access")
	s := serve(t, simulate(t, 1), impatient, func(c *router.Config) { c.Log.Access = file })
	want := map[string]int{}
	send := func(request, logged string) {
		t.Helper()
		conn := s.dial()
		defer conn.Close()
		go io.WriteString(conn, request)
		if status, body := final(t, bufio.NewReader(conn)); status == 0 {
			t.Fatalf("%.60q: no answer", request)
		} else {
			want[fmt.Sprint(logged, " ", status)]++
			_ = body
		}
	}
	get := func(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\n\r\n" }
	send(post("/v1/chat/completions", "", small), "POST chat complete")
	send(get("/v1/models"), "GET models complete")
	send(get("/v1/models/sim"), "GET models complete")
	send(get("/v1/models/secret-model"), "GET models refused")
	send(get("/health"), "GET health complete")
	send(get("/secret-path"), "GET other refused")
	send(get("/v1/messages"), "GET messages refused")
	send(get("/v1/responses/resp_none"), "GET responses complete")
	send("garbage\r\n\r\n", " other refused")
	for _, c := range unreadable {
		send(fmt.Sprintf(c.request, "/v1/messages"), "POST messages refused")
	}
	got := map[string]int{}
	eventually(t, "all are in the access log", func() bool {
		clear(got)
		for _, l := range lines(t, file) {
			got[fmt.Sprintf("%s %s %s %d", l.Method, l.API, l.End, l.Status)]++
			if l.ID == "" || strings.Contains(l.API, "secret") {
				t.Fatalf("%+v", l)
			}
		}
		return fmt.Sprint(got) == fmt.Sprint(want)
	})
	counted := s.metrics()
	for what, n := range want {
		var method, api, end, status string
		if strings.HasPrefix(what, " ") {
			fmt.Sscan(what, &api, &end, &status)
		} else {
			fmt.Sscan(what, &method, &api, &end, &status)
		}
		if total := counted.sum("cgn_router_requests_total", `api="`+api+`"`, `code="`+status+`"`); total < float64(n) {
			t.Errorf("%s: %v counted, want %d", what, total, n)
		}
	}
	total := 0
	for _, n := range want {
		total += n
	}
	if n := counted.sum("cgn_router_requests_total"); n != float64(total) {
		t.Errorf("%v counted, want %d", n, total)
	}
	if strings.Contains(string(counted), "secret-") {
		t.Error("what a client made up is a label")
	}
}

// TestErrorsForAnthropicNameTheRequest checks the request id in body and head, where the SDKs look
// for it. The id is there even if no node was asked.
func TestErrorsForAnthropicNameTheRequest(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1), impatient)
	for request, status := range map[string]int{
		"POST /v1/messages HTTP/1.1\r\nHost:":                      408,
		"GET /v1/messages HTTP/1.1\r\nHost: x\r\n\r\n":             405,
		"POST /v1/messages/batches HTTP/1.1\r\nHost: x\r\n\r\n":    404,
		post("/v1/messages", "", "{"):                              400,
		post("/v1/messages", "", `{"model":"none","messages":[]}`): 404,
	} {
		conn := s.dial()
		io.WriteString(conn, request)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		var e struct {
			ID string `json:"request_id"`
		}
		err = json.NewDecoder(resp.Body).Decode(&e)
		if id := resp.Header.Get("Request-Id"); err != nil || resp.StatusCode != status || id == "" || id != e.ID ||
			id != resp.Header.Get("X-Request-Id") {
			t.Errorf("%.40q: status %d, Request-Id %q, in the body %q, %v", request, resp.StatusCode, id, e.ID, err)
		}
	}
}

// TestPlainHTTPToATLSPort checks that the error names the problem. Bytes that are neither HTTP nor
// TLS get no answer.
func TestPlainHTTPToATLSPort(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	own := pki.FilesIn(dir, pki.Router)
	file := filepath.Join(t.TempDir(), "access")
	s := serve(t, simulate(t, 1), impatient, func(c *router.Config) {
		c.TLS.Cert, c.TLS.Key, c.Log.Access = own.Cert, own.Key, file
	})
	for _, request := range []string{post("/v1/messages", "", small), "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"} {
		conn := s.dial()
		io.WriteString(conn, request)
		status, body := answer(t, bufio.NewReader(conn))
		if status != 400 || !strings.Contains(enveloped(t, "", body), "HTTPS") {
			t.Errorf("%.20q: %d %s", request, status, body)
		}
	}
	for _, request := range []string{"", "garbage that is neither\r\n\r\n"} {
		conn := s.dial()
		io.WriteString(conn, request)
		conn.(*net.TCPConn).CloseWrite()
		if page, _ := io.ReadAll(conn); bytes.Contains(page, []byte("HTTP")) {
			t.Errorf("%q: %q", request, page)
		}
	}
	conn := tls.Client(s.dial(), &tls.Config{InsecureSkipVerify: true})
	r := bufio.NewReader(conn)
	io.WriteString(conn, post("/v1/chat/completions", "", small))
	if status, body := answer(t, r); status != 200 {
		t.Errorf("with TLS: %d %s", status, body)
	}
	fmt.Fprintf(conn, "POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
	status, body := answer(t, r)
	if enveloped(t, "/v1/messages", body); status != 408 {
		t.Errorf("slow with TLS: %d %s", status, body)
	}
	eventually(t, "answers are logged", func() bool { return len(lines(t, file)) == 4 })
	if n := s.metrics().sum("cgn_router_requests_total"); n != 4 {
		t.Errorf("%v answers counted, want 4", n)
	}
}
