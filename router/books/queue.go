package books

import "time"

// queue holds the entries whose prompts a node still computes, the oldest first. If every entry has
// an expected time, the time since the oldest entry became the oldest counts as computed. The
// computed tokens may be more than the oldest entry's own: engines compute prompts in batches. The
// book's lock guards the queue.
//
// Expected and learned times differ, so each has its own moment from which the oldest entry is
// computed.
type queue struct {
	head, tail            *Entry
	byExpected, byLearned time.Time // the moments from which the oldest entry is computed
	due                   time.Time // when the oldest entry's first token is expected
	unmodelled            int       // entries without an expected time
}

// push adds an entry behind the others, whose learned times add up to learned. If they should have
// been computed by now, the node computes the entry from now on.
func (q *queue) push(e *Entry, learned time.Duration, now time.Time) {
	if e.before = q.tail; q.tail == nil {
		q.begin(e, now)
	} else {
		q.tail.after = e
		if from := now.Add(-learned); from.After(q.byLearned) {
			q.byLearned = from
		}
	}
	q.tail = e
	q.count(e, 1)
}

// begin makes e, if any, the oldest entry, which is computed from now on.
func (q *queue) begin(e *Entry, now time.Time) {
	q.head, q.byExpected, q.byLearned = e, now, now
	switch {
	case e == nil:
	case e.cost.Learned <= 0:
		q.due = now.Add(Never)
	default:
		q.due = now.Add(e.cost.Learned + e.cost.Lag)
	}
}

// ending is how an entry's wait for its prompt ends.
type ending uint8

const (
	seen    ending = iota // the answer has begun, so the node works
	assumed               // the prompt should have been computed
	dropped               // the prompt was not computed
)

// remove takes an entry out. Once the oldest entry is gone, the next one is computed from now on.
// If the oldest prompt was not computed, the next one is as late. A prompt that was computed before
// the oldest one has used its own time of the time since then. If its answer was seen, the oldest
// one is not late yet.
func (q *queue) remove(e *Entry, how ending, now time.Time) {
	due := q.due
	if e.before == nil {
		q.begin(e.after, now)
		if e.after != nil && how == dropped {
			q.due = earlier(due.Add(e.after.cost.Learned), q.due)
		}
	} else {
		e.before.after = e.after
		q.byExpected = earlier(q.byExpected.Add(e.cost.Expected), now)
		if how != dropped {
			q.byLearned = earlier(q.byLearned.Add(e.cost.Learned), now)
			q.due = due.Add(e.cost.Learned)
		}
		if how == seen && q.due.Before(now) {
			q.due = now
		}
	}
	if e.after == nil {
		q.tail = e.before
	} else {
		e.after.before = e.before
	}
	e.before, e.after = nil, nil
	q.count(e, -1)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (q *queue) count(e *Entry, n int) {
	if e.cost.Expected <= 0 {
		q.unmodelled += n
	}
}

// modelled says that all entries have an expected time, and that there are some.
func (q *queue) modelled() bool { return q.head != nil && q.unmodelled == 0 }

// computed returns how many tokens of the queue should have been computed at now.
func (q *queue) computed(now time.Time) int64 {
	e := q.head
	if e == nil || q.unmodelled > 0 {
		return 0
	}
	return int64(float64(e.cost.Prefill) * max(now.Sub(q.byExpected).Seconds(), 0) / e.cost.Expected.Seconds())
}
