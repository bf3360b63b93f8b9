package front

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/intake"
)

// begin sends a request up to its body.
func begin(t *testing.T, url, framing string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", framing)
	return c
}

// refusal reads an answer up to the end of the connection.
func refusal(t *testing.T, c net.Conn, want string) {
	t.Helper()
	answer, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 503") ||
		!strings.Contains(string(answer), "Retry-After: 1") ||
		!strings.Contains(string(answer), want) {
		t.Errorf("got %q, %v, want 503 %s", answer, err, want)
	}
}

func TestBodiesAreBoundedTogether(t *testing.T) {
	o := testOptions(t)
	o.Limits.ReadTimeout = time.Hour // no client is cut for being slow
	var read atomic.Int64
	engineOf(t, &o, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		read.Store(int64(len(body)))
	})
	s, url, client := serve(t, o)
	holds := func(want int) {
		t.Helper()
		eventually(t, fmt.Sprint(want, " bytes held"), func() bool { return s.bodies.Held() == int64(want) })
	}
	whole := fmt.Sprint("Content-Length: ", o.Limits.MaxBody)
	first, _, _ := begin(t, url, whole), begin(t, url, whole),
		begin(t, url, fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", o.Limits.MaxBody))
	holds(o.Limits.MaxBodyTotal)
	refusal(t, begin(t, url, whole), "bodies_full")
	refusal(t, begin(t, url, "Transfer-Encoding: chunked\r\n\r\n11000\r\n"), "bodies_full")
	if resp, body := post(t, client, url+"/v1/completions",
		strings.Repeat("x", intake.SmallBody)); resp.StatusCode != 200 || read.Load() != intake.SmallBody {
		t.Errorf("a small body: %d %s", resp.StatusCode, body)
	}
	first.Close()
	holds(2 * o.Limits.MaxBody)
	for range 2 {
		if resp, body := post(t, client, url+"/v1/completions",
			strings.Repeat("x", o.Limits.MaxBody)); resp.StatusCode != 200 || read.Load() != int64(o.Limits.MaxBody) {
			t.Errorf("with room: %d %s", resp.StatusCode, body)
		}
		if resp, _ := post(t, client, url+"/nowhere", strings.Repeat("x", o.Limits.MaxBody)); resp.StatusCode != 404 {
			t.Errorf("a path that is none: %d", resp.StatusCode)
		}
		holds(2 * o.Limits.MaxBody)
	}
}

// TestSilentBodiesMakeRoom: clients that announce bodies and send nothing leave room for other
// clients.
func TestSilentBodiesMakeRoom(t *testing.T) {
	o := testOptions(t)
	o.Limits.ReadTimeout, o.Limits.MaxBodyTotal = 10*time.Second, o.Limits.MaxBody
	engineOf(t, &o, func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) })
	s, url, client := serve(t, o)
	silent := begin(t, url, fmt.Sprint("Content-Length: ", o.Limits.MaxBody))
	eventually(t, "it holds room", func() bool { return s.bodies.Held() == int64(o.Limits.MaxBody) })
	eventually(t, "room for another", func() bool {
		resp, _ := post(t, client, url+"/v1/completions", strings.Repeat("x", o.Limits.MaxBody))
		return resp.StatusCode == 200
	})
	if answer, err := io.ReadAll(silent); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 408") ||
		!strings.Contains(string(answer), "slow_request") {
		t.Errorf("%q %v", answer, err)
	}
}

// TestLongBodyIsNotReadInVain: a request without room is refused before its body has come. A body
// of unknown length takes only the memory of its actual length.
func TestLongBodyIsNotReadInVain(t *testing.T) {
	o := testOptions(t)
	o.Limits.MaxRequests = 1
	arrived, finish := make(chan struct{}), make(chan struct{})
	engineOf(t, &o, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		arrived <- struct{}{}
		<-finish
	})
	s, url, _ := serve(t, o)
	const length = 100 << 10
	c := begin(t, url, fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0", length,
		strings.Repeat("x", length)))
	<-arrived
	if held := s.bodies.Held(); held != length {
		t.Errorf("%d bytes held, want %d", held, length)
	}
	refusal(t, begin(t, url, fmt.Sprint("Content-Length: ", length)), "agent_full")
	close(finish)
	if resp, err := io.ReadAll(io.LimitReader(c, 12)); string(resp) != "HTTP/1.1 200" {
		t.Errorf("%q %v", resp, err)
	}
	eventually(t, "nothing held", func() bool { return s.bodies.Held() == 0 })
}
