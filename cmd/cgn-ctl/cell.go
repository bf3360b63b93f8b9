package main

import (
	"fmt"
	"strconv"
	"time"
)

// dash stands for a value that is not known.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// number writes v with the given decimals, "-" if it is not known.
func number(v *float64, decimals int) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.*f", decimals, *v)
}

// brief writes a duration with three digits.
func brief(d time.Duration) string {
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

// bytesOf writes a size with the largest unit that fits.
func bytesOf(n uint64) string {
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

// limitCell is how many requests a node may have at once; - where nobody has limited them.
func limitCell(n int) string {
	if n <= 0 {
		return "-"
	}
	return strconv.Itoa(n)
}
