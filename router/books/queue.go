package books

import (
	"cmp"
	"time"
)

// queue holds the entries whose prompts a node still computes, the oldest first. If every entry has
// an expected time, the time since the oldest entry became the oldest counts as computed. The
// computed tokens may be more than the oldest entry's own: engines compute prompts in batches. The
// book's lock guards the queue.
type queue struct {
	head, tail *Entry
	since      time.Time // the moment from which the oldest entry is computed
	unmodelled int       // entries without an expected time
}

func (q *queue) push(e *Entry, now time.Time) {
	if e.before = q.tail; q.tail == nil {
		q.head, q.since = e, now
	} else {
		q.tail.after = e
	}
	q.tail = e
	q.count(e, 1)
}

// remove takes an entry out. Once the oldest entry is gone, the next one is computed from now on.
// An entry that ends before the oldest one has used its own expected time of the time since then.
func (q *queue) remove(e *Entry, now time.Time) {
	if e.before == nil {
		q.head, q.since = e.after, now
	} else {
		e.before.after = e.after
		if q.since = q.since.Add(cmp.Or(e.cost.Expected, e.cost.Learned)); q.since.After(now) {
			q.since = now
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
	return int64(float64(e.cost.Prefill) * max(now.Sub(q.since).Seconds(), 0) / e.cost.Expected.Seconds())
}
