package lora

import (
	"math"
	"time"
)

// clock estimates how far an engine's clock is behind. A time that is new on a page was shortly
// before the page, so the smallest difference of a new time is about that far. Until then the
// clocks count as equal, because the times of an idle engine are old.
type clock struct {
	newest float64    // latest time of a page, in Unix seconds; 0: none
	least  difference // smallest of the present window
	before difference // smallest of the window before
	since  time.Time  // beginning of the present window
}

// difference is how far a new time was before its page.
type difference struct {
	of    time.Duration
	known bool
}

// clockWindow bounds how long a difference counts, which is one to two windows with new times. A
// step of either clock is forgotten after that time.
const clockWindow = 5 * time.Minute

// stepped says whether the engine's clock was set back by more than a window, because the latest
// time of a page is that much earlier than before. The times before tell nothing then.
func (c *clock) stepped(newest float64) bool {
	return newest > 0 && newest < c.newest-clockWindow.Seconds()
}

// read notes the latest time of a page that came at now. risen is the latest of the adapters' times
// that are later than on the page before; 0: none. risen counts while a step of the engine's clock
// keeps the time of one adapter ahead of the others.
func (c *clock) read(newest, risen float64, now time.Time) {
	if newest > c.newest {
		risen = newest
	}
	if c.newest > 0 && risen > 0 {
		if now.Sub(c.since) >= clockWindow {
			c.before, c.least, c.since = c.least, difference{}, now
		}
		if d := now.Sub(unix(risen)); !c.least.known || d < c.least.of {
			c.least = difference{d, true}
		}
	}
	c.newest = max(c.newest, newest)
}

// time converts a time of the engine's clock that is on a page of now.
func (c *clock) time(stamp float64, now time.Time) time.Time {
	behind := c.least.of
	if c.before.known {
		behind = min(behind, c.before.of)
	}
	at := unix(stamp).Add(behind)
	if at.After(now) {
		return now
	}
	return at
}

// unix returns a time in Unix seconds.
func unix(seconds float64) time.Time {
	whole, part := math.Modf(min(seconds, math.MaxInt32))
	return time.Unix(int64(whole), int64(part*1e9))
}
