package fleet

import (
	"sync"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// maxFresh is how many keys set here are remembered. While all other hosts answer, those of the
// last seconds are enough.
const maxFresh = 1 << 16

// fresh are keys that were set here, or came here, lately. A host that has been away keeps these,
// whatever became of them elsewhere.
type fresh struct {
	mu   sync.Mutex
	keys map[block.Addr]time.Time
}

// add notes a key. Past maxFresh those from before since are forgotten, and if that is not enough
// the new one is.
func (f *fresh) add(a block.Addr, since func() time.Time) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.keys) >= maxFresh {
		limit := since()
		for k, at := range f.keys {
			if at.Before(limit) {
				delete(f.keys, k)
			}
		}
	}
	if _, known := f.keys[a]; known || len(f.keys) < maxFresh {
		f.keys[a] = now
	}
}

// after tells whether a key was set later than t.
func (f *fresh) after(a block.Addr, t time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, known := f.keys[a]
	return known && at.After(t)
}

// heard is since when every other host has been told everything; zero: one has not been yet.
func (v *View) heard() time.Time {
	oldest := time.Now()
	for _, l := range *v.links.Load() {
		if at := l.heard.Load(); at == nil {
			return time.Time{}
		} else if at.Before(oldest) {
			oldest = *at
		}
	}
	return oldest
}
