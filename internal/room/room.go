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

// Take takes n bytes. Take returns false, and takes nothing, if fewer are left. A Take that fails
// never makes another one fail.
func (r *Room) Take(n int64) bool {
	for {
		used := r.used.Load()
		if n > r.limit-used {
			return false
		}
		if r.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// Give gives n bytes back.
func (r *Room) Give(n int64) { r.used.Add(-n) }
