package gateway

import (
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
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

// TestGrowingBody takes room for what the server has allocated, not only for what has come.
func TestGrowingBody(t *testing.T) {
	b := bodies{limit: 1 << 20, longest: 600 << 10, buffer: 16 << 10, time: time.Minute}
	a, other := &arrival{grows: time.Now()}, &arrival{grows: time.Now()}
	for _, step := range []struct {
		got  int64
		read int
		want int64
	}{
		{smallBody, 16 << 10, 0}, {smallBody + 1, 16 << 10, growStep}, {growStep, 16 << 10, growStep},
		{growStep, 100 << 10, 2 * growStep}, {growStep, 16 << 20, 600 << 10}, {16 << 20, 16 << 10, 600 << 10},
	} {
		a.got.Store(step.got)
		if err := b.grow(a, step.read); err != nil || b.total != step.want {
			t.Errorf("%+v: %d bytes taken, %v", step, b.total, err)
		}
	}
	if err := b.grow(other, 600<<10); err == nil || other.fault != errBodies {
		t.Errorf("more than there is: %v", err)
	}
	b.give(a)
	if err := b.grow(other, 600<<10); err != nil || b.total != 600<<10 {
		t.Errorf("room that was given back: %v", err)
	}
	b.give(other)
	if announced := (&arrival{}); b.grow(announced, 16<<20) != nil || b.total != 0 {
		t.Error("a body whose length is known has taken its room before")
	}
}

// TestSearchForSlowBodies is not made for each of many refused bodies.
func TestSearchForSlowBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bodies{limit: 100, time: time.Second}
		conn, peer := net.Pipe()
		defer conn.Close()
		defer peer.Close()
		slow, next := &arrival{conn: conn}, &arrival{}
		began := time.Now()
		b.take(slow, 100, began)
		time.Sleep(b.time / bodyGrace)
		if b.take(next, 1, began) {
			t.Fatal("it is not slow yet")
		}
		time.Sleep(cutEvery - time.Nanosecond)
		if b.take(next, 1, began) {
			t.Error("it is looked for too often")
		}
		time.Sleep(time.Nanosecond)
		if !b.take(next, 1, began) {
			t.Error("it is not looked for again")
		}
	})
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
			if a.next(); a.n != 0 || a.got.Load() != 0 || !a.began.IsZero() {
				t.Errorf("%q goes on", line)
			}
		}
	}
}
