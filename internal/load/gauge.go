package load

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
)

// Gauge is a measurement that may be unknown. The zero value is unknown, which differs from a known
// zero. JSON leaves out an unknown gauge. A missing or null gauge in JSON is unknown.
type Gauge struct {
	value float64
	known bool
}

// Known returns a gauge with a measured value. The gauge is unknown if the value is not finite.
func Known(v float64) Gauge {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return Gauge{}
	}
	return Gauge{value: v, known: true}
}

// Get returns the value, and whether it is known.
func (g Gauge) Get() (v float64, known bool) { return g.value, g.known }

// Or returns the value, or the argument if the value is unknown.
func (g Gauge) Or(unknown float64) float64 {
	if g.known {
		return g.value
	}
	return unknown
}

// over returns an n-th of the value, if it is known.
func (g Gauge) over(n int) Gauge {
	g.value /= float64(n)
	return g
}

// IsZero makes encoding/json's omitzero leave out unknown values.
func (g Gauge) IsZero() bool { return !g.known }

// MarshalJSON writes the number, or null.
func (g Gauge) MarshalJSON() ([]byte, error) {
	if !g.known {
		return []byte("null"), nil
	}
	return json.Marshal(g.value)
}

// UnmarshalJSON reads a number or null.
func (g *Gauge) UnmarshalJSON(b []byte) error {
	*g = Gauge{}
	if bytes.Equal(b, []byte("null")) {
		return nil
	}
	if err := json.Unmarshal(b, &g.value); err != nil {
		return fmt.Errorf("want a number: %w", err)
	}
	g.known = true
	return nil
}

// String shows the number, or "-".
func (g Gauge) String() string {
	if !g.known {
		return "-"
	}
	return fmt.Sprintf("%g", g.value)
}
