package affinity

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

var t0 = time.Unix(1e9, 0)

func after(d time.Duration) time.Time { return t0.Add(d) }

func TestSessionsMoveWithTheirAnswers(t *testing.T) {
	s := NewSessions(10, time.Minute)
	a, b := s.Key("m", []byte("a")), s.Key("m", []byte("b"))
	if _, ok := s.Node(a, t0); ok {
		t.Error("a session is known before its first answer")
	}
	for i, c := range []struct {
		key, node uint64
		want      Change
	}{{a, 1, Begun}, {a, 1, Kept}, {b, 1, Begun}, {a, 2, Moved}, {a, 2, Kept}, {a, 1, Moved}} {
		if got := s.Answered(c.key, c.node, t0); got != c.want {
			t.Errorf("answer %d: %v", i, got)
		}
		if node, ok := s.Node(c.key, t0); !ok || node != c.node {
			t.Errorf("answer %d: at %d, %v", i, node, ok)
		}
	}
	if s.Len(t0) != 2 || s.Dropped() != 0 {
		t.Errorf("%d sessions, %d dropped", s.Len(t0), s.Dropped())
	}
}

// TestKeysOfSessions checks that the model and the id both make the key, and where one ends.
func TestKeysOfSessions(t *testing.T) {
	s := NewSessions(10, time.Minute)
	k := s.Key("m", []byte("ab"))
	if k == s.Key("ma", []byte("b")) || k == s.Key("n", []byte("ab")) || k == s.Key("m", []byte("ac")) ||
		k != s.Key("m", []byte("ab")) {
		t.Error("keys are mixed up")
	}
	id := []byte("session")
	if n := testing.AllocsPerRun(100, func() { s.Node(s.Key("model", id), t0) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestSessionsExpire(t *testing.T) {
	s := NewSessions(10, time.Minute)
	a, b := s.Key("m", []byte("a")), s.Key("m", []byte("b"))
	s.Answered(a, 1, t0)
	s.Answered(b, 1, after(30*time.Second))
	s.Ended(b, 1, after(45*time.Second))
	if _, ok := s.Node(a, after(time.Minute-1)); !ok {
		t.Error("forgotten too early")
	}
	if _, ok := s.Node(a, after(time.Minute)); ok {
		t.Error("remembered for too long")
	}
	if got := s.Len(after(time.Minute)); got != 1 {
		t.Errorf("%d sessions", got)
	}
	if _, ok := s.Node(b, after(105*time.Second-1)); !ok {
		t.Error("the lifetime does not count from the end of the answer")
	}
	if got := s.Len(after(105 * time.Second)); got != 0 || s.Dropped() != 0 {
		t.Errorf("%d sessions at the end, %d dropped", got, s.Dropped())
	}
}

// TestManySessionsExpireAtOnce checks that no session is known after its lifetime, even if a
// request removes only some of the expired ones.
func TestManySessionsExpireAtOnce(t *testing.T) {
	s := NewSessions(100, time.Minute)
	keys := make([]uint64, 100)
	for i := range keys {
		keys[i] = s.Key("m", fmt.Append(nil, i))
		s.Answered(keys[i], 1, t0)
	}
	now := after(time.Minute)
	if got := s.Answered(keys[99], 2, now); got != Begun {
		t.Errorf("an expired session is known: %v", got)
	}
	for i, key := range keys[:99] {
		if _, ok := s.Node(key, now); ok {
			t.Errorf("session %d is known", i)
		}
	}
	if s.Len(now) != 1 || s.Dropped() != 0 {
		t.Errorf("%d sessions, %d dropped", s.Len(now), s.Dropped())
	}
}

// TestALateEndMovesNothing checks the end of an old answer, after another node has answered.
func TestALateEndMovesNothing(t *testing.T) {
	s := NewSessions(10, time.Minute)
	a := s.Key("m", []byte("a"))
	s.Answered(a, 1, t0)
	s.Answered(a, 2, after(time.Second))
	s.Ended(a, 1, after(50*time.Second))
	s.Ended(s.Key("m", []byte("unknown")), 1, after(50*time.Second))
	if node, ok := s.Node(a, after(time.Minute)); !ok || node != 2 {
		t.Errorf("at %d, %v", node, ok)
	}
	if _, ok := s.Node(a, after(61*time.Second)); ok || s.Len(t0) != 0 {
		t.Error("the end of another node's answer counts")
	}
}

// TestSessionsAreBounded checks that the oldest sessions make room, whatever the size.
func TestSessionsAreBounded(t *testing.T) {
	s := NewSessions(3, time.Hour)
	keys := make([]uint64, 5)
	for i := range keys {
		keys[i] = s.Key("m", fmt.Append(nil, i))
		s.Answered(keys[i], uint64(i), t0)
		s.Answered(keys[0], 0, t0) // the first one stays in use
	}
	for i, want := range []bool{true, false, false, true, true} {
		if _, ok := s.Node(keys[i], t0); ok != want {
			t.Errorf("session %d: %v", i, ok)
		}
	}
	if s.Len(t0) != 3 || s.Dropped() != 2 {
		t.Errorf("%d sessions, %d dropped", s.Len(t0), s.Dropped())
	}
	for _, limit := range []int{0, 1, 15, 256, 1000} {
		s := NewSessions(limit, time.Hour)
		for i := range 5000 {
			s.Answered(s.Key("m", fmt.Append(nil, i)), 1, t0)
		}
		if n := s.Len(t0); n > max(limit, 1) || n < limit*9/10 || n+int(s.Dropped()) != 5000 {
			t.Errorf("limit %d: %d sessions, %d dropped", limit, n, s.Dropped())
		}
		for i := range s.shards {
			if h := &s.shards[i]; len(h.at) != h.order.Len() {
				t.Errorf("limit %d: %d keys, %d in order", limit, len(h.at), h.order.Len())
			}
		}
	}
}

func TestSessionsAtOnce(t *testing.T) {
	s := NewSessions(512, time.Minute)
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := range 2000 {
				key := s.Key("m", fmt.Append(nil, i*worker%700))
				now := after(time.Duration(i) * time.Millisecond)
				s.Answered(key, uint64(worker), now)
				s.Node(key, now)
				s.Ended(key, uint64(worker), now)
				s.Len(now)
			}
		})
	}
	all.Wait()
	if n := s.Len(after(2 * time.Second)); n > 512 {
		t.Errorf("%d sessions", n)
	}
}
