// Package tally adds up what clients use: requests and tokens of each UTC day, tenant, key and
// model. Adding takes one short lock and allocates nothing after the first request of a row. The
// rows of a day are in a file that is replaced as a whole; readers sum all files of a day.
package tally

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// maxRows is the number of rows of a day beyond which a tenant's further keys and models share
	// one row. Beyond maxRows of those all further tenants share one.
	maxRows = 10000
	// maxUnwritten is the number of days that are kept in memory while they cannot be written.
	maxUnwritten = 8
	// maxName bounds the names of a row, in bytes.
	maxName = 1024
	// maxTokens bounds the tokens of a request, beyond all that a request can use.
	maxTokens = 1 << 40
	// writeEvery is the time between two writes, and so the time that a kill loses at most.
	writeEvery = 10 * time.Second
)

// Other stands for the keys and models, and at last the tenants, without a row of their own. No
// tenant and no key can have this name.
const Other = "(other)"

// Day is a UTC day, counted from January 1, 1970.
type Day int64

const secondsOfDay = 24 * 60 * 60

// DayOf returns the UTC day of at.
func DayOf(at time.Time) Day { return Day(at.Unix() / secondsOfDay) }

// Time returns the beginning of the day.
func (d Day) Time() time.Time { return time.Unix(int64(d)*secondsOfDay, 0).UTC() }

// String returns the day as 2026-11-29.
func (d Day) String() string { return d.Time().Format(time.DateOnly) }

// ParseDay is the inverse of String.
func ParseDay(text string) (Day, error) {
	at, err := time.Parse(time.DateOnly, text)
	if err != nil || at.Unix() < 0 {
		return 0, fmt.Errorf("%.20q is no day; write it as 2026-11-29", text)
	}
	return DayOf(at), nil
}

// MarshalText implements encoding.TextMarshaler.
func (d Day) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Day) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDay(string(text))
	return err
}

// Subject is whose use a row has.
type Subject struct {
	Tenant string `json:"tenant"`
	Key    string `json:"key"`   // id of the key; empty: the client has none
	Model  string `json:"model"` // canonical name
}

// Use is what requests have used.
type Use struct {
	Requests   int64 `json:"requests"`
	Prompt     int64 `json:"prompt_tokens"`
	Cached     int64 `json:"cached_tokens"` // part of Prompt
	Completion int64 `json:"completion_tokens"`
	// Estimated counts the requests whose tokens the engine did not report, or not all of them.
	Estimated int64 `json:"estimated_requests"`
}

// Add adds v to u. A sum beyond the largest number is the largest number.
func (u *Use) Add(v *Use) {
	add := func(to *int64, n int64) {
		if *to += n; *to < 0 {
			*to = math.MaxInt64
		}
	}
	add(&u.Requests, v.Requests)
	add(&u.Prompt, v.Prompt)
	add(&u.Cached, v.Cached)
	add(&u.Completion, v.Completion)
	add(&u.Estimated, v.Estimated)
}

// Row is what a subject has used on a day, a line of a file.
type Row struct {
	Day Day `json:"day"`
	Subject
	Use
}

// Options say where a Tally writes.
type Options struct {
	Dir      string
	KeepDays int // age in days from which files are deleted; 0: never
	Logger   *slog.Logger
}

// Tally counts what requests use. Run writes the counts. A nil Tally counts nothing.
type Tally struct {
	o       Options
	writing sync.Mutex // held by the one who writes

	mu     sync.Mutex // never held during I/O
	days   []*sheet   // the last one is of the latest request
	folded int64      // requests in a row of Other
	lost   int64      // requests that were never written
	closed bool

	failing bool // the last write failed; under mu
	purged  Day  // of the last look for old files; under writing
}

// sheet has the rows of a day. Its file is of this sheet alone, so a sheet whose file is complete
// can be forgotten.
type sheet struct {
	day            Day
	file           string
	index          map[Subject]int32 // of rows
	rows           []Row
	added, written int64 // requests
}

// New returns a tally that writes to o.Dir, and nothing before the first request.
func New(o Options) *Tally { return &Tally{o: o} }

// Add counts what one request has used, at its end. Add keeps no memory of the names. After Close
// it counts the request as lost.
func (t *Tally) Add(of Subject, u Use, at time.Time) {
	if t == nil {
		return
	}
	u.Prompt, u.Completion = min(max(u.Prompt, 0), maxTokens), min(max(u.Completion, 0), maxTokens)
	u.Cached = min(max(u.Cached, 0), u.Prompt)
	of = Subject{cut(of.Tenant), cut(of.Key), cut(of.Model)}
	d := DayOf(at)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		t.lost += u.Requests
		return
	}
	if n := len(t.days); n == 0 || t.days[n-1].day != d {
		t.turnTo(d)
	}
	s := t.days[len(t.days)-1]
	i, ok := s.index[of]
	if !ok {
		i = s.row(of)
	}
	r := &s.rows[i]
	if r.Key == Other {
		t.folded++
	}
	r.Use.Add(&u)
	s.added += u.Requests
}

// turnTo makes the sheet of day d the last one. A clock may go back to a day that has a sheet.
func (t *Tally) turnTo(d Day) {
	if i := slices.IndexFunc(t.days, func(s *sheet) bool { return s.day == d }); i >= 0 {
		t.days = append(slices.Delete(slices.Clone(t.days), i, i+1), t.days[i])
		return
	}
	if len(t.days) == maxUnwritten {
		t.lost += t.days[0].added - t.days[0].written
		t.days = slices.Delete(t.days, 0, 1)
	}
	t.days = append(t.days, &sheet{day: d, file: newFileName(d), index: map[Subject]int32{}})
}

// row returns the index of the row that counts for a subject without one: a new row while there is
// room, else one that others share.
func (s *sheet) row(of Subject) int32 {
	if len(s.rows) >= maxRows {
		of.Key, of.Model = Other, Other
		if i, ok := s.index[of]; ok {
			return i
		}
	}
	if len(s.rows) >= 2*maxRows {
		of.Tenant = Other
		if i, ok := s.index[of]; ok {
			return i
		}
	}
	of = Subject{strings.Clone(of.Tenant), strings.Clone(of.Key), strings.Clone(of.Model)}
	i := int32(len(s.rows))
	s.index[of] = i
	s.rows = append(s.rows, Row{Day: s.day, Subject: of})
	return i
}

func cut(name string) string { return name[:min(len(name), maxName)] }

// Stats are counts for metrics.
type Stats struct {
	Rows    int   // of the latest day
	Folded  int64 // requests in a row of Other
	Lost    int64 // requests that were never written
	Failing bool  // the last write failed
}

// Stats returns the present counts.
func (t *Tally) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Stats{Folded: t.folded, Lost: t.lost, Failing: t.failing}
	if n := len(t.days); n > 0 {
		s.Rows = len(t.days[n-1].rows)
	}
	return s
}

// Run writes what has changed every 10 s, and deletes old files, until ctx ends.
func (t *Tally) Run(ctx context.Context) error {
	tick := time.NewTicker(writeEvery)
	defer tick.Stop()
	for {
		t.write(time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// Close writes what Run has not written. An error says how many requests are lost.
func (t *Tally) Close() error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	_, err := t.save(time.Now())
	if err == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var n int64
	for _, s := range t.days {
		n += s.added - s.written
	}
	t.lost += n
	t.days = nil
	return fmt.Errorf("%d requests not written: %w", n, err)
}

// write saves what has changed. It logs the first failure of several in a row.
func (t *Tally) write(now time.Time) {
	if first, err := t.save(now); first {
		t.o.Logger.Error("usage not written; it stays in memory and is tried again", "dir", t.o.Dir, "error", err)
	}
}

// save writes the sheets that have changed, and forgets the complete ones. Old files are deleted
// once a day. first says that the save before did not fail.
func (t *Tally) save(now time.Time) (first bool, failure error) {
	t.writing.Lock()
	defer t.writing.Unlock()
	t.mu.Lock()
	days := slices.Clone(t.days)
	t.mu.Unlock()
	for _, s := range days {
		failure = cmp.Or(failure, t.writeSheet(s))
	}
	if t.purged != DayOf(now) {
		if err := purge(t.o.Dir, t.o.KeepDays, now); err != nil {
			t.o.Logger.Warn("old files of usage are not deleted", "dir", t.o.Dir, "error", err)
		}
		t.purged = DayOf(now)
	}
	return t.forget(failure != nil), failure
}

// forget forgets the complete sheets but the last one, and notes whether the write failed. first
// says that the write before did not fail.
func (t *Tally) forget(failed bool) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first, t.failing = failed && !t.failing, failed
	if n := len(t.days); n > 0 {
		last := t.days[n-1]
		t.days = slices.DeleteFunc(t.days, func(s *sheet) bool { return s.added == s.written && s != last })
	}
	return first
}

// writeSheet writes a sheet if it has changed since the last time.
func (t *Tally) writeSheet(s *sheet) error {
	t.mu.Lock()
	if s.added == s.written {
		t.mu.Unlock()
		return nil
	}
	rows, added := slices.Clone(s.rows), s.added
	t.mu.Unlock()
	if err := writeFile(t.o.Dir, s.file, rows); err != nil {
		return err
	}
	t.mu.Lock()
	s.written = added
	t.mu.Unlock()
	return nil
}

// ErrTooLarge is the error of Files for files of more bytes than asked for.
var ErrTooLarge = errors.New("the files are too large")

// Files returns the files of a day in the directory, of most bytes together. Of this Tally's own
// files it returns what they would be if they were written now.
func (t *Tally) Files(d Day, most int64) ([]File, error) {
	own := map[string][]Row{}
	t.mu.Lock()
	for _, s := range t.days {
		if s.day == d {
			own[s.file] = slices.Clone(s.rows) // at most maxOfFile
		}
	}
	t.mu.Unlock()
	all, err := readDay(t.o.Dir, d, own, most)
	if err != nil {
		return nil, err
	}
	for name, rows := range own {
		all = append(all, File{name, rows})
	}
	slices.SortFunc(all, func(x, y File) int { return cmp.Compare(x.Name, y.Name) })
	return all, nil
}
