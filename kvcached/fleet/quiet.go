package fleet

import (
	"sync"
	"time"
)

// Bounds of repeated warnings.
const (
	quietFor  = 10 * time.Second // time after a warning in which warnings of the same subject are only counted
	maxQuiets = 2 * maxMembers   // known subjects; if there are more, all are forgotten
)

// quiet limits how often a warning is logged.
type quiet struct {
	mu       sync.Mutex
	subjects map[string]silence
}

type silence struct {
	until      time.Time
	suppressed uint64
}

// says tells whether a warning is due, and how many warnings of the subject were suppressed since
// the last.
func (q *quiet) says(subject string) (suppressed uint64, due bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	s := q.subjects[subject]
	if now.Before(s.until) {
		s.suppressed++
		q.subjects[subject] = s
		return 0, false
	}
	if q.subjects == nil || len(q.subjects) >= maxQuiets {
		q.subjects = map[string]silence{}
	}
	q.subjects[subject] = silence{until: now.Add(quietFor)}
	return s.suppressed, true
}

// warn logs a warning, at most one every quietFor for each subject.
func (v *View) warn(subject, message string, args ...any) {
	if suppressed, due := v.quiet.says(subject); due {
		v.o.Logger.Warn(message, append(args, "suppressed", suppressed)...)
	}
}
