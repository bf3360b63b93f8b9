package resume

import "sync/atomic"

// Memory bounds the bytes that all streams keep so that another node can go on with them: bodies of
// requests, token ids and text. A stream that gets no more room can no longer go on. Memory is safe
// for concurrent use.
type Memory struct {
	limit int64
	used  atomic.Int64
}

// NewMemory returns a Memory of that many bytes.
func NewMemory(limit int64) *Memory { return &Memory{limit: limit} }

// Used returns the bytes that streams keep now.
func (m *Memory) Used() int64 { return m.used.Load() }

// take reserves n bytes, or nothing if there is no room.
func (m *Memory) take(n int64) bool {
	if m.used.Add(n) > m.limit {
		m.used.Add(-n)
		return false
	}
	return true
}

func (m *Memory) give(n int64) { m.used.Add(-n) }
