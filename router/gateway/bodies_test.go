package gateway

import (
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

func TestBodies(t *testing.T) {
	b := bodies{limit: 100}
	var first, second, third fasthttp.RequestHeader
	now := time.Now()
	until := now.Add(time.Second)
	total := func(want int64) {
		t.Helper()
		if b.total != want {
			t.Fatalf("%d bytes held, want %d", b.total, want)
		}
	}
	if !b.take(&first, 60, now, until) || b.take(&second, 41, now, until) || !b.take(&second, 40, now, until) {
		t.Fatal("100 bytes are 60 and 40")
	}
	if b.take(&third, 1, until, until) {
		t.Fatal("no room, and nothing is lost yet")
	}
	b.give(&second)
	b.give(&second)
	total(60)
	if !b.take(&first, 70, now, until) { // its connection ended before the body, another one has its memory
		t.Fatal("no room in place of its own")
	}
	total(70)
	if !b.take(&first, 70, now, time.Time{}) || b.take(&second, 31, now, time.Time{}) || !b.take(&second, 30, now, time.Time{}) {
		t.Fatal("a chunked body takes room when it has come")
	}
	if b.take(&third, 1, until.Add(time.Hour), until) {
		t.Fatal("what has been read is not lost")
	}
	b.give(&first)
	if !b.take(&first, 70, now, until) || !b.take(&third, 60, until.Add(1), until) {
		t.Fatal("what was not read in time is lost")
	}
	total(90)
	b.give(&first)
	b.give(&second)
	b.give(&third)
	total(0)
}
