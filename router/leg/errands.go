package leg

import (
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
)

// errands are short exchanges of a dispatcher that outlive the request for which they are made. The
// bounds are on those under way.
type errands struct {
	bug func(p any) // gets what an errand has panicked with

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

// start runs f, which sends a body of that many bytes. f must bound its own duration. A panic ends
// only the errand. start returns false if there are too many errands, or if the dispatcher has
// ended.
func (e *errands) start(bytes int, f func()) bool {
	if !e.reserve(bytes) {
		return false
	}
	e.run(bytes, f)
	return true
}

// reserve makes room for an errand, which run must begin. reserve returns false if there is none.
func (e *errands) reserve(bytes int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended || e.count >= maxErrands || e.bytes+bytes > maxErrandBytes {
		return false
	}
	e.count, e.bytes = e.count+1, e.bytes+bytes
	e.all.Add(1)
	return true
}

// run begins the errand f, for which reserve has made room.
func (e *errands) run(bytes int, f func()) {
	go func() {
		defer e.all.Done()
		defer e.done(bytes)
		defer func() {
			if p := recover(); p != nil {
				e.bug(p)
			}
		}()
		f()
	}()
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

// exchange sends q to the node and reads the answer, of at most limit bytes, which must end before
// until.
func (n *member) exchange(q *relay.Request, until time.Time, limit int) (status int, body []byte, err error) {
	ex, err := n.node.Pool.Send(q, until)
	if err != nil {
		return 0, nil, err
	}
	defer ex.Close()
	if err := ex.ReadHead(until); err != nil {
		return 0, nil, err
	}
	ex.SetReadDeadline(until)
	status = ex.Status()
	body, err = relay.Capture(nil, ex, relay.CaptureOptions{Limit: limit})
	return status, body, err
}
