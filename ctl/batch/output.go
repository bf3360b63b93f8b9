package batch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/rights"
)

// Each record begins with recordStart, and its id with recordID.
const (
	recordID    = "batch_req_"
	recordStart = `{"id":"` + recordID
)

// record is a line of OpenAI's output file. Of Response and Error one is null.
type record struct {
	ID       string    `json:"id"`
	CustomID string    `json:"custom_id"`
	Response *response `json:"response"`
	Error    *failure  `json:"error"`
}

// response is an answer of the endpoint, whatever its status.
type response struct {
	StatusCode int             `json:"status_code"`
	RequestID  string          `json:"request_id"`
	Body       json.RawMessage `json:"body"`
}

// failure says why there is no answer.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (r *record) good() bool {
	return r.Error == nil && r.Response != nil && r.Response.StatusCode/100 == 2
}

// journal is a file of records. Any goroutine may append.
type journal struct {
	mu    sync.Mutex
	f     *os.File
	dirty bool  // there are records that the disk may not have yet
	err   error // of a write, which may have left a part of a record at the file's end
}

// append writes a record in one piece. After an error it writes no more, so that only the last
// record can be cut.
func (o *journal) append(r *record) error {
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.dirty = true
		_, o.err = o.f.Write(line.Bytes())
	}
	return o.err
}

// sync waits until the disk has all records.
func (o *journal) sync() error {
	o.mu.Lock()
	dirty := o.dirty
	o.dirty = false
	o.mu.Unlock()
	if !dirty {
		return nil
	}
	return o.f.Sync()
}

func (o *journal) close() { _ = o.f.Close() }

// openOutput opens or makes the file of answers, and marks their requests in in. A last record that
// was cut is removed. The file must be none of others. It is locked until the caller closes it.
func openOutput(ctx context.Context, name string, in *input, others []string) (o *journal, err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	if err := lock(ctx, f); err != nil {
		return nil, err
	}
	info, err := f.Stat() // nobody else writes it from here on
	if err == nil {
		err = apart("out", name, info, others)
	}
	if err != nil {
		return nil, err
	}
	whole, err := readAnswers(f, in)
	if err != nil {
		return nil, cli.WithHint(err, "is it the output of another file? Name another one with --out")
	}
	if whole < info.Size() {
		if err := f.Truncate(whole); err != nil {
			return nil, err
		}
	}
	return &journal{f: f}, syncDir(name)
}

// lockTime is how long a run waits for the end of a run that was killed just now.
const lockTime = time.Second

// lock locks the file of answers for this process.
func lock(ctx context.Context, f *os.File) error {
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("--out %s: cannot be locked: %w", f.Name(), err)
		case time.Since(begun) >= lockTime || ctx.Err() != nil:
			return fmt.Errorf("--out %s: another run writes it; wait for its end, or name another file", f.Name())
		}
	}
}

// apart refuses a file that is not regular, or that is one of others.
func apart(flag, name string, info fs.FileInfo, others []string) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("--%s %s: is no regular file", flag, name)
	}
	for _, o := range others {
		other, err := os.Stat(o)
		if err != nil {
			return err
		}
		if os.SameFile(info, other) {
			return fmt.Errorf("--%s %s: is the same file as %s", flag, name, o)
		}
	}
	return nil
}

// syncDir waits until the disk has the name of a file.
func syncDir(name string) error {
	d, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// cutRecord tells whether text can be the beginning of a record.
func cutRecord(text []byte) bool {
	return bytes.HasPrefix(text, []byte(recordStart)) || bytes.HasPrefix([]byte(recordStart), text)
}

// readAnswers marks the requests that f answers, and returns the length of its whole lines. What
// follows them must be a record that was cut.
func readAnswers(f *os.File, in *input) (whole int64, err error) {
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, mostAnswer+mostLine)
	lines.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			return i + 1, data[:i], nil
		}
		if atEOF && !cutRecord(data) {
			return 0, nil, errors.New("is no line of an output file")
		}
		if atEOF {
			return 0, nil, bufio.ErrFinalToken // what is left was cut
		}
		return 0, nil, nil
	})
	n := 1
	for ; lines.Scan(); n++ {
		line := lines.Bytes()
		whole += int64(len(line)) + 1
		var r struct {
			record
			Response *struct {
				StatusCode int `json:"status_code"`
			} `json:"response"`
		}
		if err := json.Unmarshal(line, &r); err != nil {
			return 0, fmt.Errorf("--out %s:%d: is no line of an output file: %w", f.Name(), n, err)
		}
		d := digestOf(r.CustomID)
		done, known := in.answered[d]
		if !known {
			return 0, fmt.Errorf("--out %s:%d: %s has no custom_id %.80q", f.Name(), n, in.f.Name(), r.CustomID)
		}
		if !done && r.Error == nil && r.Response != nil && r.Response.StatusCode/100 == 2 {
			in.answered[d] = true
			in.before++
		}
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("--out %s:%d: %w", f.Name(), n, err)
	}
	return whole, nil
}

// failures is the file of requests that failed. It is there only after a failure.
type failures struct {
	name  string
	apart []string // files that it must not be

	mu      sync.Mutex
	journal *journal // nil: nothing has failed
}

// check refuses a name of another file of the run, a file that a run has not written for requests
// that failed, and a directory in which no file can be made.
func (f *failures) check() error {
	info, err := os.Stat(f.name)
	if errors.Is(err, fs.ErrNotExist) {
		if err = rights.Writable(filepath.Dir(f.name)); err == nil {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("--errors: %w", err)
	}
	if err := apart("errors", f.name, info, f.apart); err != nil {
		return err
	}
	return f.checkContent()
}

// checkContent looks at the first record, since a run writes answers and failures to two files.
func (f *failures) checkContent() error {
	file, err := rights.Open(f.name)
	if err != nil {
		return fmt.Errorf("--errors: %w", err)
	}
	defer file.Close()
	head := make([]byte, len(recordStart))
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("--errors: %w", err)
	}
	var r record
	first := json.NewDecoder(io.MultiReader(bytes.NewReader(head[:n]), io.LimitReader(file, mostAnswer+mostLine)))
	if !cutRecord(head[:n]) || first.Decode(&r) == nil && r.good() {
		return fmt.Errorf("--errors %s: is no file of requests that failed; it would be replaced, so name another file",
			f.name)
	}
	return nil
}

// remove removes the file of a former run.
func (f *failures) remove() error {
	if err := os.Remove(f.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--errors: %w", err)
	}
	return nil
}

// append writes a record, to a new file if it is the first one.
func (f *failures) append(r *record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.journal == nil {
		file, err := os.OpenFile(f.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
		if err != nil {
			return fmt.Errorf("--errors: %w", err)
		}
		f.journal = &journal{f: file}
	}
	return f.journal.append(r)
}

// sync waits until the disk has all records.
func (f *failures) sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.journal == nil {
		return nil
	}
	return f.journal.sync()
}

func (f *failures) close() {
	if f.journal != nil {
		f.journal.close()
	}
}
