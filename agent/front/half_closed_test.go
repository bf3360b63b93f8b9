package front

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestHalfClosedClientsHaveLeft: a half-closed connection ends the request at the engine, and is
// closed without an answer.
func TestHalfClosedClientsHaveLeft(t *testing.T) {
	o := testOptions(t)
	arrived, canceled := make(chan struct{}), make(chan struct{})
	engineOf(t, &o, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-r.Context().Done()
		close(canceled)
	})
	_, url, _ := serve(t, o)
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	fmt.Fprint(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
	<-arrived
	_ = c.(*net.TCPConn).CloseWrite()
	if page, err := io.ReadAll(c); err != nil || len(page) > 0 {
		t.Errorf("%q, %v", page, err)
	}
	select {
	case <-canceled:
	case <-time.After(patience):
		t.Error("the engine was not told")
	}
}
