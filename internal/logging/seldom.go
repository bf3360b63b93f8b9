package logging

import (
	"log/slog"
	"sync"
	"time"
)

// maxSubjects bounds the subjects that a Seldom knows. A further one makes it forget all of them.
const maxSubjects = 2048

// Seldom limits how often events are logged that others can cause at will. Its methods are safe for
// concurrent use.
type Seldom struct {
	Every time.Duration // shortest time between two log lines of one subject

	mu       sync.Mutex
	subjects map[string]silence
}

type silence struct {
	until      time.Time
	suppressed uint64
}

// Due tells whether an event of the subject is to be logged, and how many events of the subject
// were suppressed since the last log line.
func (s *Seldom) Due(subject string) (suppressed uint64, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	last := s.subjects[subject]
	if now.Before(last.until) {
		last.suppressed++
		s.subjects[subject] = last
		return 0, false
	}
	if s.subjects == nil || len(s.subjects) >= maxSubjects {
		s.subjects = map[string]silence{}
	}
	s.subjects[subject] = silence{until: now.Add(s.Every)}
	return last.suppressed, true
}

// Warn logs a warning with the number of suppressed events, if one is due for the subject.
func (s *Seldom) Warn(log *slog.Logger, subject, message string, args ...any) {
	if suppressed, due := s.Due(subject); due {
		log.Warn(message, append(args, "suppressed", suppressed)...)
	}
}
