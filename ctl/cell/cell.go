// Package cell writes values for the cells of tables, - for what is not known.
package cell

import (
	"fmt"
	"strconv"
	"time"
)

// Dash stands for a value that is not known.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Number writes v with the given decimals, "-" if it is not known.
func Number(v *float64, decimals int) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.*f", decimals, *v)
}

// Brief writes a duration with three digits.
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

// Bytes writes a size with the largest unit that fits.
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

// Limit is how many requests a node may have at once; - where nobody has limited them.
func Limit(n int) string {
	if n <= 0 {
		return "-"
	}
	return strconv.Itoa(n)
}
