package affinity

import (
	"container/list"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// shards bounds how many requests wait for one lock.
const shards = 16

// Sessions remembers at which node each session is: the node that gave its last answer. A session
// is forgotten when its lifetime has passed without an answer. When the table is full, a new
// session replaces the one whose last answer is oldest. Sessions keeps ids as 64-bit keyed hashes,
// and takes about 150 bytes for each session. Sessions is safe for concurrent use.
type Sessions struct {
	seed     maphash.Seed
	lifetime time.Duration
	dropped  atomic.Uint64
	shards   []shard
}

// shard holds the sessions with some of the keys.
type shard struct {
	mu    sync.Mutex
	limit int
	at    map[uint64]*list.Element // values are *session
	order list.List                // by the last answer, the oldest first
}

type session struct {
	key, node uint64
	until     time.Time
}

// NewSessions returns a table for at most limit sessions. A limit below 1 counts as 1.
func NewSessions(limit int, lifetime time.Duration) *Sessions {
	n := shards
	if limit < shards*shards {
		n = 1
	}
	s := &Sessions{seed: maphash.MakeSeed(), lifetime: lifetime, shards: make([]shard, n)}
	for i := range s.shards {
		s.shards[i].limit, s.shards[i].at = max(limit/n, 1), map[uint64]*list.Element{}
	}
	return s
}

// Key returns the key of a session with a model. A key is never 0.
func (s *Sessions) Key(model string, id []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	h.WriteString(model)
	h.WriteByte(0)
	h.Write(id)
	return max(h.Sum64(), 1)
}

// expireAtOnce bounds the sessions that one request removes because their lifetime has passed. One
// request adds at most one session, so none of them stays for long.
const expireAtOnce = 4

// lock locks and returns the shard of a key, without some of its expired sessions. The caller
// unlocks the shard.
func (s *Sessions) lock(key uint64, now time.Time) *shard {
	h := &s.shards[key%uint64(len(s.shards))]
	h.mu.Lock()
	h.expire(now, expireAtOnce)
	return h
}

// expire removes expired sessions, at most the given number of them.
func (h *shard) expire(now time.Time, most int) {
	for e := h.order.Front(); e != nil && most > 0 && e.Value.(*session).expired(now); e = h.order.Front() {
		h.remove(e)
		most--
	}
}

func (v *session) expired(now time.Time) bool { return !now.Before(v.until) }

// find returns the session with a key, or nil if it is unknown or expired.
func (h *shard) find(key uint64, now time.Time) *list.Element {
	e := h.at[key]
	if e != nil && e.Value.(*session).expired(now) {
		h.remove(e)
		return nil
	}
	return e
}

func (h *shard) remove(e *list.Element) {
	delete(h.at, e.Value.(*session).key)
	h.order.Remove(e)
}

// Node returns the node of a session; ok is false if no node is known.
func (s *Sessions) Node(key uint64, now time.Time) (node uint64, ok bool) {
	h := s.lock(key, now)
	defer h.mu.Unlock()
	e := h.find(key, now)
	if e == nil {
		return 0, false
	}
	return e.Value.(*session).node, true
}

// Change is the effect of an answer on its session.
type Change uint8

// These are the changes.
const (
	Begun Change = iota // the session was not known
	Kept                // the session stays at its node
	Moved               // the session was at another node
)

// Answered notes that a node has begun an answer for a session.
func (s *Sessions) Answered(key, node uint64, now time.Time) Change {
	h := s.lock(key, now)
	defer h.mu.Unlock()
	if e := h.find(key, now); e != nil {
		v := e.Value.(*session)
		was := v.node
		v.node, v.until = node, now.Add(s.lifetime)
		h.order.MoveToBack(e)
		if was == node {
			return Kept
		}
		return Moved
	}
	if len(h.at) == h.limit {
		h.remove(h.order.Front()) // it has not expired, or it would be gone
		s.dropped.Add(1)
	}
	h.at[key] = h.order.PushBack(&session{key, node, now.Add(s.lifetime)})
	return Begun
}

// Ended notes the end of a node's answer for a session, from which the session's lifetime counts.
// Ended changes nothing if another node has answered meanwhile.
func (s *Sessions) Ended(key, node uint64, now time.Time) {
	h := s.lock(key, now)
	defer h.mu.Unlock()
	if e := h.find(key, now); e != nil && e.Value.(*session).node == node {
		e.Value.(*session).until = now.Add(s.lifetime)
		h.order.MoveToBack(e)
	}
}

// Len returns the number of known sessions.
func (s *Sessions) Len(now time.Time) (n int) {
	for i := range s.shards {
		h := s.lock(uint64(i), now)
		h.expire(now, len(h.at))
		n += len(h.at)
		h.mu.Unlock()
	}
	return n
}

// Dropped returns how many sessions have made room for others before their lifetime had passed.
func (s *Sessions) Dropped() uint64 { return s.dropped.Load() }
