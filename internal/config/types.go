package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a non-negative span of time, written like "250ms", "5s", "1m30s".
type Duration time.Duration

// Std returns d as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String writes d without zero trailing units: "2m", not "2m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// MarshalText writes the form UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads "250ms", "5s", "1m30s"; a bare number other than 0 is refused.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return errors.New(`not a duration; write a number with a unit, like "250ms", "5s" or "2m"`)
	}
	if v < 0 {
		return errors.New("a duration must not be negative")
	}
	*d = Duration(v)
	return nil
}

// Size is a number of bytes, written like "64MiB", "1.5GB" or "4096".
type Size int64

// sizeUnits are the units of a size, longest first, in lower case. A single letter is a binary
// unit, as in other programs.
var sizeUnits = []struct {
	suffix string
	bytes  int64
}{
	{"tib", 1 << 40}, {"gib", 1 << 30}, {"mib", 1 << 20}, {"kib", 1 << 10},
	{"tb", 1e12}, {"gb", 1e9}, {"mb", 1e6}, {"kb", 1e3},
	{"t", 1 << 40}, {"g", 1 << 30}, {"m", 1 << 20}, {"k", 1 << 10}, {"b", 1}, {"", 1},
}

// String writes s in the unit that gives the smallest whole number. Of two such units it prefers
// the binary one.
func (s Size) String() string {
	number, unit := int64(s), ""
	for i, name := range []string{"TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "KB"} {
		if bytes := sizeUnits[i].bytes; int64(s)%bytes == 0 && int64(s)/bytes < number {
			number, unit = int64(s)/bytes, name
		}
	}
	return strconv.FormatInt(number, 10) + unit
}

// MarshalText writes the form UnmarshalText reads.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a number of bytes with an optional binary (KiB, MiB, GiB,
// TiB, or K, M, G, T) or decimal (KB, MB, GB, TB) unit, in any case.
func (s *Size) UnmarshalText(text []byte) error {
	t := strings.ToLower(strings.TrimSpace(string(text)))
	for _, u := range sizeUnits {
		number, ok := strings.CutSuffix(t, u.suffix)
		if !ok {
			continue
		}
		v, err := parseBytes(strings.TrimSpace(number), u.bytes)
		if err != nil {
			return err
		}
		*s = Size(v)
		return nil
	}
	return errNotSize
}

var errNotSize = errors.New(
	`not a size; write bytes with an optional unit, like 512MiB, 1GiB, 2TiB (1024 each; K, M, G and T alone too), 64MB (1000 each) or 4096`)

func parseBytes(number string, unit int64) (int64, error) {
	if n, err := strconv.ParseInt(number, 10, 64); err == nil {
		if n < 0 {
			return 0, errors.New("a size must not be negative")
		}
		if n > math.MaxInt64/unit {
			return 0, fmt.Errorf("a size must be below %d bytes", int64(math.MaxInt64))
		}
		return n * unit, nil
	}
	if strings.Trim(number, "0123456789.") != "" {
		return 0, errNotSize
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || f*float64(unit) >= math.MaxInt64 {
		return 0, errNotSize
	}
	return int64(f * float64(unit)), nil
}
