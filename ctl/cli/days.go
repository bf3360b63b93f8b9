package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/config"
)

// Days is a duration that is written in days, as in 397d, if it is a whole number of them. 0 is not
// set.
type Days time.Duration

const day = 24 * time.Hour

func (d *Days) String() string {
	switch v := time.Duration(*d); {
	case v == 0:
		return "0"
	case v%day == 0:
		return fmt.Sprintf("%dd", v/day)
	}
	return config.Duration(*d).String()
}

// Type is the name of the values in a help.
func (d *Days) Type() string { return "time" }

// Wanted describes the flag's values.
func (d *Days) Wanted() string {
	return fmt.Sprintf("days like 397d, or hours like 12h; 1m to %dd", mostDays)
}

// mostDays is the longest time, a hundred years.
const mostDays = 36500

// Set parses "397d" or a duration.
func (d *Days) Set(text string) error {
	v, err := time.ParseDuration(text)
	if number, isDays := strings.CutSuffix(text, "d"); isDays {
		var n uint64
		n, err = strconv.ParseUint(number, 10, 16)
		v = time.Duration(n) * day
	}
	if err != nil || v < time.Minute || v > mostDays*day {
		return errors.New("not a time: " + d.Wanted())
	}
	*d = Days(v)
	return nil
}
