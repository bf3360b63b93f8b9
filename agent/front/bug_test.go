package front

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/address"
)

// TestBugEndsOneRequest: a panic is answered, logged and counted, and the resources of the request
// are released.
func TestBugEndsOneRequest(t *testing.T) {
	bug := func() { panic("a bug") }
	for name, plant := range map[string]func(o *Options){
		"in the front": func(o *Options) { o.Health = func() string { bug(); return "" } },
		"on the way": func(o *Options) {
			o.EngineTLS.VerifyConnection = func(tls.ConnectionState) error { bug(); return nil }
		},
		"at the end":             func(o *Options) { o.Counters.Seconds = nil },
		"at the end of a stream": func(o *Options) { o.Counters.Seconds = nil },
		"at the end of a failed one": func(o *Options) {
			o.Counters.Failures = nil
			o.EngineTLS.VerifyConnection = func(tls.ConnectionState) error { return io.ErrUnexpectedEOF }
		},
	} {
		t.Run(name, func(t *testing.T) {
			engine := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if name == "at the end of a stream" {
					w.Header().Set("Content-Type", "text/event-stream")
				}
				fmt.Fprint(w, "data: x\n\n")
			}))
			defer engine.Close()
			o := testOptions(t)
			o.EngineTLS = &tls.Config{InsecureSkipVerify: true}
			var err error
			if o.Engine, err = address.Parse(engine.URL); err != nil {
				t.Fatal(err)
			}
			plant(&o)
			s, url, client := serve(t, o)
			path := "/v1/completions"
			if name == "in the front" {
				path = "/health"
			}
			for n := range 2 {
				if resp, err := client.Post(url+path, "", strings.NewReader("{}")); err == nil {
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					if name == "on the way" && resp.StatusCode != 500 {
						t.Errorf("status %d", resp.StatusCode)
					}
				} else if name == "on the way" || name == "in the front" {
					t.Error(err)
				}
				awaitCount(t, o.Counters.Panics, float64(n+1))
				eventually(t, "nothing in flight", func() bool { return s.InFlight() == 0 })
			}
		})
	}
}

// TestTwoFramingsAreRefused: a request with two framings is refused, because a proxy in front may
// have seen other boundaries of its body.
func TestTwoFramingsAreRefused(t *testing.T) {
	o := testOptions(t)
	engineOf(t, &o, func(http.ResponseWriter, *http.Request) { t.Error("a request has reached the engine") })
	_, url, _ := serve(t, o)
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const smuggled = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
	fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nTransfer-Encoding: "+
		"chunked\r\n\r\n0\r\n\r\n%s", 5+len(smuggled), smuggled)
	answer, _ := io.ReadAll(c)
	if n := strings.Count(string(answer), "HTTP/1.1 "); n != 1 || !strings.HasPrefix(string(answer), "HTTP/1.1 400") ||
		!strings.Contains(string(answer), "both Content-Length") ||
		!strings.Contains(string(answer), "Connection: close") {
		t.Errorf("%s", answer)
	}
}
