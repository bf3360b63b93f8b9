package tally

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/replace"
	"github.com/cognitora/dataplane/internal/rights"
)

const (
	suffix    = ".jsonl"
	maxLine   = 64 << 10 // bytes; three names of maxName in JSON have less
	maxOfFile = 2*maxRows + 1
	fileMode  = 0o640
)

// File is what one sheet has counted.
type File struct {
	Name string `json:"name"`
	Rows []Row  `json:"rows"`
}

// Answer is what a router's admin port answers about a day.
type Answer struct {
	Day   Day    `json:"day"`
	Files []File `json:"files"`
}

// Requests returns the number of requests in the file. Of two states of a file the later one has
// more.
func (f *File) Requests() (n int64) {
	var sum Use
	for i := range f.Rows {
		sum.Add(&f.Rows[i].Use)
	}
	return sum.Requests
}

// newFileName returns the name of a file of day d that nobody else has: 2026-11-29.HEX.jsonl.
func newFileName(d Day) string {
	var id [8]byte
	for i, v := 0, rand.Uint64(); i < len(id); i, v = i+1, v>>8 {
		id[i] = byte(v)
	}
	return d.String() + "." + hex.EncodeToString(id[:]) + suffix
}

// dayOf returns the day of a file by its name. ok is false if the name is not that of a file of
// this package.
func dayOf(name string) (d Day, ok bool) {
	day, id, _ := strings.Cut(name, ".")
	id, ok = strings.CutSuffix(id, suffix)
	if raw, err := hex.DecodeString(id); !ok || err != nil || len(raw) != 8 {
		return 0, false
	}
	d, err := ParseDay(day)
	return d, err == nil
}

// writeFile gives a file new rows. A crash leaves the former rows or the new ones.
func writeFile(dir, name string, rows []Row) error {
	return replace.File(filepath.Join(dir, name), fileMode, func(to io.Writer) error {
		w := bufio.NewWriterSize(to, 64<<10)
		lines := json.NewEncoder(w)
		lines.SetEscapeHTML(false)
		for i := range rows {
			if err := lines.Encode(&rows[i]); err != nil {
				return err
			}
		}
		return w.Flush()
	})
}

// purge deletes the files that are older than keep days, unless keep is 0, and the parts of files
// that a crash has left.
func purge(dir string, keep int, now time.Time) error {
	names, err := list(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		whole, part := replace.Whole(name)
		d, ok := dayOf(whole)
		path := filepath.Join(dir, name)
		old := keep > 0 && d < DayOf(now)-Day(keep)
		if !ok || !old && !(part && leftover(path, now)) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// partAge is the age from which nobody writes a part of a file any more.
const partAge = time.Hour

// leftover says whether a crash has left a part of a file.
func leftover(part string, now time.Time) bool {
	info, err := os.Stat(part)
	return err == nil && now.Sub(info.ModTime()) > partAge
}

// list returns the names in a directory, sorted.
func list(dir string) ([]string, error) {
	d, err := rights.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// Strange returns the names in a directory that are not those of files of a router, sorted. Hidden
// files, such as the parts of files, are left out.
func Strange(dir string) ([]string, error) {
	names, err := list(dir)
	return slices.DeleteFunc(names, func(name string) bool {
		_, known := dayOf(name)
		return known || strings.HasPrefix(name, ".")
	}), err
}

// ReadDay returns the files of a day in a directory. An error names the file and the line.
func ReadDay(dir string, d Day) ([]File, error) { return readDay(dir, d, nil, math.MaxInt64) }

// readDay is ReadDay without the files named in skip. Files of more than most bytes together are
// ErrTooLarge.
func readDay(dir string, d Day, skip map[string][]Row, most int64) (all []File, err error) {
	names, err := list(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if of, ok := dayOf(name); !ok || of != d {
			continue
		}
		if _, own := skip[name]; own {
			continue
		}
		rows, err := readFile(filepath.Join(dir, name), d, &most)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since
		}
		if err != nil {
			return nil, err
		}
		all = append(all, File{name, rows})
	}
	return all, nil
}

// readFile returns the rows of a file of at most left bytes, which it takes off left.
func readFile(path string, d Day, left *int64) ([]Row, error) {
	f, err := rights.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if *left -= info.Size(); *left < 0 {
		return nil, ErrTooLarge
	}
	rows, err := readRows(f, d)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return rows, nil
}

// readRows reads the rows of day d, one a line. The error names the line.
func readRows(from io.Reader, d Day) (rows []Row, err error) {
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	for lines.Scan() {
		if len(rows) == maxOfFile {
			return nil, fmt.Errorf("more than %d lines", maxOfFile)
		}
		var r Row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(rows)+1, err)
		}
		if err := r.check(d); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(rows)+1, err)
		}
		rows = append(rows, r)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", len(rows)+1, err)
	}
	return rows, nil
}

// check returns an error unless the row can be one of day d.
func (r *Row) check(d Day) error {
	switch {
	case r.Day != d:
		return fmt.Errorf("day %s in a file of %s", r.Day, d)
	case r.Tenant == "":
		return errors.New("no tenant")
	case min(r.Requests, r.Prompt, r.Cached, r.Completion, r.Estimated) < 0:
		return errors.New("a number below 0")
	}
	return nil
}
