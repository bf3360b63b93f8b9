// Package cell formats values for cells of tables; "-" is an unknown value.
package cell

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/cognitora/dataplane/router/leg"
)

// Dash returns s, or "-" if it is empty.
func Dash(s string) string { return cmp.Or(s, "-") }

// Number formats v with this many decimals; "-" if it is unknown.
func Number(v *float64, decimals int) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.*f", decimals, *v)
}

// Brief formats a duration with three digits.
func Brief(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < time.Millisecond:
		return fmt.Sprintf("%.3gus", float64(d)/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.3gms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.4gs", d.Seconds())
}

// Bytes formats a size with the largest suitable unit.
func Bytes(n uint64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// Limit formats the limit of a node's concurrent requests; "-" if there is none.
func Limit(n int) string {
	if n <= 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

// Slowdown formats how much longer a node's prefill and its decode take than at its like, as
// 2.25/1.00.
func Slowdown(s *leg.NodeSpeed) string {
	if s == nil || s.Prefill.Slowdown+s.Decode.Slowdown == 0 {
		return "-"
	}
	half := func(v float64) string {
		if v == 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f", v)
	}
	return half(s.Prefill.Slowdown) + "/" + half(s.Decode.Slowdown)
}
