package gateway

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

func TestBodies(t *testing.T) {
	b := bodies{limit: 100, time: time.Minute}
	var first, second, third arrival
	now := time.Now()
	total := func(want int64) {
		t.Helper()
		if b.total != want {
			t.Fatalf("%d bytes held, want %d", b.total, want)
		}
	}
	if !b.take(&first, 60, now) || b.take(&second, 41, now) || !b.take(&second, 40, now) {
		t.Fatal("100 bytes are 60 and 40")
	}
	b.give(&second)
	b.give(&second)
	total(60)
	if !b.take(&first, 70, now) {
		t.Fatal("no room in place of its own")
	}
	total(70)
	if !b.take(&first, 70, time.Time{}) || b.take(&second, 31, time.Time{}) || !b.take(&second, 30, time.Time{}) {
		t.Fatal("a chunked body takes room when it has come")
	}
	if b.take(&third, 1, now) {
		t.Fatal("what has been read is not slow")
	}
	b.give(&first)
	b.give(&second)
	b.give(&third)
	total(0)
}

// TestSlowBodiesMakeRoom for others, and no others are cut.
func TestSlowBodiesMakeRoom(t *testing.T) {
	b := bodies{limit: 300, time: time.Minute}
	now := time.Now()
	arriving := func(got int64, size int64, since time.Time) (*arrival, net.Conn) {
		conn, peer := net.Pipe()
		t.Cleanup(func() { conn.Close(); peer.Close() })
		a := &arrival{conn: conn}
		if a.got.Store(got); !b.take(a, size, since) {
			t.Fatal("no room")
		}
		return a, conn
	}
	slow, slowConn := arriving(24, 100, now.Add(-15*time.Second)) // at that pace it takes 62 s
	fast, _ := arriving(26, 100, now.Add(-15*time.Second))
	fresh, _ := arriving(0, 100, now.Add(-2*time.Second))
	var next, last arrival
	if !b.take(&next, 100, now) || b.take(&last, 1, now) {
		t.Fatal("the slow one does not make room, or others do")
	}
	if slow.holds.Load() || !fast.holds.Load() || !fresh.holds.Load() || b.total != 300 {
		t.Errorf("the wrong one was cut; %d bytes held", b.total)
	}
	if _, err := slowConn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("its reader goes on: %v", err)
	}
}

func TestContextOfItsHeader(t *testing.T) {
	var ctx fasthttp.RequestCtx
	if contextOf(&ctx.Request.Header) != &ctx {
		t.Error("the header is elsewhere")
	}
}

func TestArrival(t *testing.T) {
	for line, want := range map[string]string{
		"POST /v1/messages HTTP/1.1\r\nHost: x": "POST messages", "POST /v1/messages?beta=true HTTP/1.1": "POST messages",
		"POST /v1/messages/count_tokens HTTP/1.1": "POST count_tokens", "GET /v1/models\r\n": "GET other",
		"POST /v1/responses": "POST responses", "": " other", "\x16\x03\x01 /v1/messages": " other", `{"a": /v1/messages`: " other",
		"NOSUCHMETHOD /v1/messages HTTP/1.1": " other", "POST": " other", "POST ": "POST other",
	} {
		var whole, bytewise arrival
		whole.arrived([]byte(line), nil)
		for i := range line {
			bytewise.arrived([]byte{line[i]}, nil)
		}
		for _, a := range []*arrival{&whole, &bytewise} {
			if method, api := a.asked(); method+" "+api.String() != want {
				t.Errorf("%q: %s %s, want %s", line, method, api, want)
			}
			if a.over(); a.n != 0 || a.got.Load() != 0 || !a.began.IsZero() {
				t.Errorf("%q goes on", line)
			}
		}
	}
}
