package accesses

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"
	"time"
)

// Recorder writes accesses as Lines, up to a number of bytes; what comes after
// is counted and left out. It is safe for concurrent use. A write that fails
// ends the recording.
type Recorder struct {
	mu      sync.Mutex
	w       *bufio.Writer
	left    int64
	dropped uint64
	lines   uint64
	began   time.Time
	err     error
}

// NewRecorder records to w, at most so many bytes.
func NewRecorder(w io.Writer, bytes int64) *Recorder {
	return &Recorder{w: bufio.NewWriterSize(w, 64<<10), left: bytes, began: time.Now()}
}

// Get records that the blocks of a prompt, or single ones, were asked for.
func (r *Recorder) Get(ids []int64, bytes int64) { r.record(Line{HashIDs: ids, Bytes: bytes}) }

// Put records that blocks were stored.
func (r *Recorder) Put(ids []int64, bytes int64) {
	r.record(Line{HashIDs: ids, Bytes: bytes, Op: "put"})
}

func (r *Recorder) record(l Line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.Timestamp = time.Since(r.began).Milliseconds()
	text, err := json.Marshal(l)
	if err != nil || r.err != nil || int64(len(text)) >= r.left {
		r.left = 0 // a trace with holes would say that blocks were not used
		r.dropped++
		return
	}
	r.left -= int64(len(text)) + 1
	if _, r.err = r.w.Write(append(text, '\n')); r.err == nil {
		r.lines++
	}
}

// RecorderStats is what a Recorder has done.
type RecorderStats struct {
	Lines   uint64 // written
	Dropped uint64 // left out because the file is full, or cannot be written
}

// Stats returns a snapshot.
func (r *Recorder) Stats() RecorderStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return RecorderStats{r.lines, r.dropped}
}

// Flush writes what is buffered, and returns why the recording ended early if it did.
func (r *Recorder) Flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.w.Flush(); r.err == nil {
		r.err = err
	}
	return r.err
}
