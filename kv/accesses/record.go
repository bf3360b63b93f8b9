package accesses

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"
	"time"
)

// Recorder writes accesses as Lines until the file has a given number of bytes. Later accesses are
// counted and dropped. A Recorder is safe for concurrent use. A write that fails ends the
// recording.
type Recorder struct {
	mu      sync.Mutex
	w       *bufio.Writer
	left    int64
	dropped uint64
	lines   uint64
	began   time.Time
	err     error
}

// NewRecorder returns a Recorder that writes at most that number of bytes to w.
func NewRecorder(w io.Writer, bytes int64) *Recorder {
	return &Recorder{w: bufio.NewWriterSize(w, 64<<10), left: bytes, began: time.Now()}
}

// Get records a request for the blocks of one prompt, or for single blocks.
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
		r.left = 0 // nothing more is written: a trace with gaps understates the use of blocks
		r.dropped++
		return
	}
	r.left -= int64(len(text)) + 1
	if _, r.err = r.w.Write(append(text, '\n')); r.err == nil {
		r.lines++
	}
}

// RecorderStats counts the lines of a Recorder.
type RecorderStats struct {
	Lines   uint64 // written lines
	Dropped uint64 // dropped because the file is full or a write failed
}

// Stats returns a snapshot.
func (r *Recorder) Stats() RecorderStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return RecorderStats{r.lines, r.dropped}
}

// Flush writes the buffered lines. Flush returns the error that ended the recording early, if any.
func (r *Recorder) Flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.w.Flush(); r.err == nil {
		r.err = err
	}
	return r.err
}
