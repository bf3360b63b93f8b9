package fleet

import (
	"sync"
	"time"
)

// Bounds of warnings that an operation may give each time.
const (
	quietFor  = 10 * time.Second // after one, others of the same subject are only counted
	maxQuiets = 2 * maxMembers   // subjects that are known; beyond, all are forgotten
)

// quiet keeps warnings from being given too often.
type quiet struct {
	mu       sync.Mutex
	subjects map[string]silence
}

type silence struct {
	until      time.Time
	suppressed uint64
}

// says tells whether a warning is due, and how many of its subject were suppressed since the one
// before.
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

// warn logs what is not logged more often than every quietFor about its subject.
func (v *View) warn(subject, message string, args ...any) {
	if suppressed, due := v.quiet.says(subject); due {
		v.o.Logger.Warn(message, append(args, "suppressed", suppressed)...)
	}
}
