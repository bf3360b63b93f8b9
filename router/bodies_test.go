package router_test

import (
	"bufio"
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

// TestBodiesInAll checks the bound that all bodies share. A body beyond the bound is refused before
// it is sent, and small requests pass. Each ended request frees the room of its body.
func TestBodiesInAll(t *testing.T) {
	t.Parallel()
	const size = 120 << 10
	s := serve(t, simulate(t, 1), func(c *router.Config) { c.Limits.MaxBody, c.Limits.MaxBodyTotal = 150<<10, 200<<10 })
	large := chatBody(strings.Repeat("x", size), plain)
	refused := func(what, path string, resp *http.Response) {
		t.Helper()
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if resp.StatusCode != 503 || err != nil || resp.Header.Get("Retry-After") == "" {
			t.Fatalf("%s: %d %.300s %v", what, resp.StatusCode, body, err)
		}
		enveloped(t, path, body)
	}
	for how, body := range map[string]string{"answered": large, "malformed": strings.Repeat("x", len(large)),
		"left": large[:size/2]} {
		s.idle() // so that the room of the previous request is free
		conn := s.dial()
		fmt.Fprintf(conn, "POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n",
			len(large))
		held := bufio.NewReader(conn)
		if line, err := held.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 100 ") || err != nil {
			t.Fatalf("%s: %q %v", how, line, err)
		}
		held.ReadString('\n')
		resp, err := s.send(t.Context(), "POST", "/v1/chat/completions", large)
		if err != nil {
			t.Fatal(err)
		}
		refused("announced", "/v1/chat/completions", resp)
		req, err := http.NewRequest("POST", s.url+"/v1/messages", io.MultiReader(strings.NewReader(large)))
		if err != nil {
			t.Fatal(err)
		}
		if resp, err = s.client.Do(req); err != nil {
			t.Fatal(err)
		}
		refused("chunked", "/v1/messages", resp)
		mustAll(t, "small", together(4, func(i int) *reply { return s.chat(chatBody(fmt.Sprint(i), plain)) }))
		if io.WriteString(conn, body); how == "left" {
			conn.Close()
		} else if status, body := answer(t, held); status != map[string]int{"answered": 200, "malformed": 400}[how] {
			t.Fatalf("%s: %d %.300s", how, status, body)
		}
		eventually(t, "there is room again after "+how, func() bool { return s.chat(large).status == 200 })
	}
}

// TestAnnouncedBodiesThatDoNotCome checks that an announced body keeps its memory only until
// another request needs the memory.
func TestAnnouncedBodiesThatDoNotCome(t *testing.T) {
	t.Parallel()
	const size = 120 << 10
	s := serve(t, simulate(t, 1), func(c *router.Config) {
		c.Limits.MaxBody, c.Limits.MaxBodyTotal = 150<<10, 300<<10
		c.Limits.BodyTimeout = config.Duration(soon / 2) // after this time both would be cut
	})
	large := chatBody(strings.Repeat("x", size), plain)
	var idle []net.Conn
	var answers []*bufio.Reader
	for range 2 {
		conn := s.dial()
		fmt.Fprintf(conn, "POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n",
			len(large))
		r := bufio.NewReader(conn)
		if status, _ := answer(t, r); status != 100 {
			t.Fatal("the head is not taken")
		}
		idle, answers = append(idle, conn), append(answers, r)
	}
	eventually(t, "there is room for one that comes", func() bool { return s.chat(large).status == 200 })
	got := map[int]int{}
	for i, conn := range idle {
		go io.WriteString(conn, large)
		status, body := answer(t, answers[i])
		if got[status]++; status == 408 {
			enveloped(t, "/v1/messages", body)
		}
	}
	if got[408] != 1 || got[200] != 1 {
		t.Errorf("no more than needed is cut: %v", got)
	}
}

// TestUnfinishedChunkedBodies checks that an unfinished body takes room for each announced chunk,
// and for the sum of many small ones.
func TestUnfinishedChunkedBodies(t *testing.T) {
	t.Parallel()
	const size = 120 << 10
	s := serve(t, simulate(t, 1), func(c *router.Config) { c.Limits.MaxBody, c.Limits.MaxBodyTotal = 150<<10, 200<<10 })
	large := chatBody(strings.Repeat("x", size), plain)
	begin := func(part string) (net.Conn, *bufio.Reader) {
		t.Helper()
		conn := s.dial()
		fmt.Fprintf(conn, "POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
		io.WriteString(conn, part)
		return conn, bufio.NewReader(conn)
	}
	small := strings.Repeat("1000\r\n"+strings.Repeat("x", 0x1000)+"\r\n", size/0x1000)
	for name, part := range map[string]string{"announced": fmt.Sprintf("%x\r\n%s", size, large[:1000]),
		"small chunks": small} {
		held := s.dial()
		fmt.Fprintf(held, "POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n",
			len(large))
		first := bufio.NewReader(held)
		if status, _ := answer(t, first); status != 100 {
			t.Fatal("the head is not taken")
		}
		_, r := begin(part)
		status, body := answer(t, r)
		if status != 503 {
			t.Fatalf("%s: %d %.300s", name, status, body)
		}
		enveloped(t, "/v1/messages", body)
		io.WriteString(held, large)
		if status, body := answer(t, first); status != 200 {
			t.Fatalf("%s: %d %.300s", name, status, body)
		}
		s.idle()
		unfinished := fmt.Sprintf("%x\r\n%s\r\n", len(large), large)
		conn, r := begin(unfinished)
		eventually(t, "an unfinished chunked body holds its room", func() bool {
			if s.chat(large).status == 503 {
				return true
			}
			conn.SetReadDeadline(time.Now().Add(time.Millisecond))
			if _, err := r.Peek(1); err == nil { // it was refused, because the other one had the room
				conn, r = begin(unfinished)
			}
			conn.SetReadDeadline(time.Time{})
			return false
		})
		io.WriteString(conn, "0\r\n\r\n")
		if status, body := answer(t, r); status != 200 {
			t.Fatalf("%s: %d %.300s", name, status, body)
		}
		s.idle()
	}
}
