package router_test

import (
	"bytes"
	"fmt"
	"io"
	"testing"
)

// TestRefusedWithoutLeave checks that a refusal reaches a client that sends a large body at once,
// whether or not it asks for leave to send it.
func TestRefusedWithoutLeave(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	s := serve(t, simulate(t, 1), k.locked)
	const size = 3 << 20
	body := bytes.Repeat([]byte("a"), size)
	for _, expect := range []string{"", "Expect: 100-continue\r\n"} {
		for range 5 {
			conn := s.dial()
			fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n%sContent-Length: %d\r\n\r\n", expect, size)
			if _, err := conn.Write(body); err != nil {
				t.Errorf("%q: the body cannot be sent: %v", expect, err)
			}
			page, err := io.ReadAll(conn)
			if err != nil || !bytes.HasPrefix(page, []byte("HTTP/1.1 401 ")) ||
				!bytes.Contains(page, []byte("invalid_api_key")) {
				t.Errorf("%q: %s, %v", expect, page, err)
			}
			conn.Close()
		}
	}
}
