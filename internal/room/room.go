// Package room bounds the bytes that many requests keep together.
package room

import "sync/atomic"

// Room is a number of bytes that may be taken. Room is safe for concurrent use.
type Room struct {
	limit int64
	used  atomic.Int64
}

// New returns a Room of that many bytes.
func New(limit int64) *Room { return &Room{limit: limit} }

// Used returns the bytes that are taken now.
func (r *Room) Used() int64 { return r.used.Load() }

// Take takes n bytes. Take returns false, and takes nothing, if fewer are left.
func (r *Room) Take(n int64) bool {
	if r.used.Add(n) > r.limit {
		r.used.Add(-n)
		return false
	}
	return true
}

// Give gives n bytes back.
func (r *Room) Give(n int64) { r.used.Add(-n) }
