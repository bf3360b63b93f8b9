package leg

import "sync"

// errands are short exchanges of a dispatcher that outlive the request for which they are made. The
// bounds are on those under way. The zero value is ready.
type errands struct {
	mu    sync.Mutex
	ended bool
	count int
	bytes int // of the bodies that they send
	all   sync.WaitGroup
}

const (
	maxErrands     = 64
	maxErrandBytes = 64 << 20
)

// start runs f, which sends a body of that many bytes. f must bound its own duration. start returns
// false if there are too many errands, or if the dispatcher has ended.
func (e *errands) start(bytes int, f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended || e.count >= maxErrands || e.bytes+bytes > maxErrandBytes {
		return false
	}
	e.count, e.bytes = e.count+1, e.bytes+bytes
	e.all.Go(func() {
		defer e.done(bytes)
		f()
	})
	return true
}

func (e *errands) done(bytes int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.count, e.bytes = e.count-1, e.bytes-bytes
}

// end waits for all errands. start returns false from now on.
func (e *errands) end() {
	e.mu.Lock()
	e.ended = true
	e.mu.Unlock()
	e.all.Wait()
}
