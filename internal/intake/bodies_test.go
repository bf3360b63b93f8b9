package intake

import (
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func TestBodies(t *testing.T) {
	b := Bodies{Limit: 100, Time: time.Minute}
	var first, second, third Body
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
	b.Give(&second)
	b.Give(&second)
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
	b.Give(&first)
	b.Give(&second)
	b.Give(&third)
	total(0)
}

// TestSlowBodiesMakeRoom: slow bodies are cut when others need room, and no other bodies are.
func TestSlowBodiesMakeRoom(t *testing.T) {
	b := Bodies{Limit: 300, Time: time.Minute}
	now := time.Now()
	arriving := func(got int64, size int64, since time.Time) (*Body, net.Conn) {
		conn, peer := net.Pipe()
		t.Cleanup(func() { conn.Close(); peer.Close() })
		a := &Body{Conn: conn}
		if a.got.Store(got); !b.take(a, size, since) {
			t.Fatal("no room")
		}
		return a, conn
	}
	slow, slowConn := arriving(24, 100, now.Add(-15*time.Second)) // at this speed it takes 62 s
	fast, _ := arriving(26, 100, now.Add(-15*time.Second))
	fresh, _ := arriving(0, 100, now.Add(-2*time.Second))
	var next, last Body
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

// TestGrowingBody: a chunked body needs room for the memory that the server has allocated, not only
// for received bytes.
func TestGrowingBody(t *testing.T) {
	b := Bodies{Limit: 1 << 20, Longest: 600 << 10, Buffer: 16 << 10, Time: time.Minute}
	a, other := &Body{grows: time.Now()}, &Body{grows: time.Now()}
	for _, step := range []struct {
		got  int64
		read int
		want int64
	}{
		{SmallBody, 16 << 10, 0}, {SmallBody + 1, 16 << 10, growStep}, {growStep, 16 << 10, growStep},
		{growStep, 100 << 10, 2 * growStep}, {growStep, 16 << 20, 600 << 10}, {16 << 20, 16 << 10, 600 << 10},
	} {
		a.got.Store(step.got)
		if err := b.Grow(a, step.read); err != nil || b.total != step.want {
			t.Errorf("%+v: %d bytes taken, %v", step, b.total, err)
		}
	}
	if err := b.Grow(other, 600<<10); err != ErrNoRoom {
		t.Errorf("more than there is: %v", err)
	}
	b.Give(a)
	if err := b.Grow(other, 600<<10); err != nil || b.total != 600<<10 {
		t.Errorf("room that was given back: %v", err)
	}
	b.Give(other)
	if announced := (&Body{}); b.Grow(announced, 16<<20) != nil || b.total != 0 {
		t.Error("a body whose length is known has taken its room before")
	}
}

// TestSearchForSlowBodies: of many refused bodies, not every one causes a search.
func TestSearchForSlowBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Bodies{Limit: 100, Time: time.Second}
		conn, peer := net.Pipe()
		defer conn.Close()
		defer peer.Close()
		slow, next := &Body{Conn: conn}, &Body{}
		began := time.Now()
		b.take(slow, 100, began)
		time.Sleep(b.Time / bodyGrace)
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
