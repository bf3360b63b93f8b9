package load

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// Taken is the time of a sample by this host's clock; zero: never. In JSON it is the sample's age
// in milliseconds at the time of writing or reading, so clocks of two hosts need not agree.
type Taken struct{ time.Time }

// maxAgeMs is the largest accepted age.
const maxAgeMs = 1e12

// Age returns how old the sample is at now, and never less than 0.
func (t Taken) Age(now time.Time) time.Duration { return max(now.Sub(t.Time), 0) }

// MarshalJSON writes the age, or null for zero.
func (t Taken) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return json.Marshal(min(float64(t.Age(time.Now()).Microseconds())/1e3, maxAgeMs))
}

// UnmarshalJSON reads an age, or null for zero.
func (t *Taken) UnmarshalJSON(b []byte) error {
	*t = Taken{}
	if bytes.Equal(b, []byte("null")) {
		return nil
	}
	var ms float64
	if err := json.Unmarshal(b, &ms); err != nil {
		return fmt.Errorf("want an age in milliseconds: %w", err)
	}
	if ms < 0 || ms > maxAgeMs {
		return fmt.Errorf("an age of %g ms is not in 0..%g", ms, float64(maxAgeMs))
	}
	t.Time = time.Now().Add(-time.Duration(ms * float64(time.Millisecond)))
	return nil
}
