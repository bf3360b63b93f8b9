package front

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/address"
)

func TestEngineFailures(t *testing.T) {
	t.Run("refused", func(t *testing.T) {
		o := testOptions(t)
		o.Engine = address.Address{Network: "tcp", Addr: "127.0.0.1:1", Host: "x"}
		_, url, client := serve(t, o)
		resp, body := post(t, client, url+"/v1/completions", "{}")
		if resp.StatusCode != 502 || !strings.Contains(body, `"engine_unreachable"`) ||
			!strings.HasPrefix(body, `{"error":{`) {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
	t.Run("reset before headers", func(t *testing.T) {
		o := testOptions(t)
		engineOf(t, &o, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		_, url, client := serve(t, o)
		resp, body := post(t, client, url+"/v1/messages", "{}")
		if resp.StatusCode != 500 || !strings.HasPrefix(body, `{"error":{"message"`) ||
			!strings.HasSuffix(body, `"type":"error"}`) {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
	t.Run("killed on a connection used before", func(t *testing.T) {
		o := testOptions(t)
		var engine *httptest.Server
		engine = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/messages" {
				engine.Listener.Close()
				panic(http.ErrAbortHandler)
			}
		}))
		t.Cleanup(engine.Close)
		o.Engine = address.Address{Network: "tcp", Addr: engine.Listener.Addr().String(), Host: "x"}
		_, url, client := serve(t, o)
		post(t, client, url+"/v1/completions", "{}")
		if resp, body := post(t, client, url+"/v1/messages", "{}"); resp.StatusCode != 500 {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
	t.Run("too long for HTTP/1.0", tooLong)
	t.Run("silent", func(t *testing.T) {
		o := testOptions(t)
		o.Limits.Total = 50 * time.Millisecond
		engineOf(t, &o, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		_, url, client := serve(t, o)
		if resp, body := post(t, client, url+"/v1/completions", ""); resp.StatusCode != 504 {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
}

// tooLong: a client of HTTP/1.0 needs the answer's length, so the answer is held. An answer too
// long to be held is no failure of the engine.
func tooLong(t *testing.T) {
	o := testOptions(t)
	engineOf(t, &o, func(w http.ResponseWriter, _ *http.Request) {
		piece := make([]byte, 64<<10)
		for err := error(nil); err == nil; {
			_, err = w.Write(piece)
		}
	})
	s, url, _ := serve(t, o)
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "POST /v1/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
	if answer, err := io.ReadAll(c); !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") || err != nil {
		t.Errorf("%.200s %v", answer, err)
	}
	if n := counted(s.o.Counters.Failures); n != 0 {
		t.Errorf("%v failures of the engine counted", n)
	}
}
