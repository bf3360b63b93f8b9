package peers

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/cognitora/dataplane/perf/trace"
)

// Config says what is compared.
type Config struct {
	Root string // root of the repository, with bin and .cache
	// Trace is the trace, and TraceName its name in the report.
	Trace     trace.Source
	TraceName string
	// Contestants are names; empty: all.
	Contestants []string
	// Modes are further routing modes in which our router takes part.
	Modes []string
	// Events makes our router take part with KV events too.
	Events bool
	// Windows is the number of disjoint windows of the trace, Requests their size.
	Windows, Requests int
	// Scale divides the lengths of prompts and answers.
	Scale int
	// Loads are shares, in percent, of the rate that round robin holds.
	Loads []int
	// Rates are the rates that round robin holds in each window, in requests per second. One rate
	// is for all windows. Empty: the rates are searched.
	Rates []float64
	// RateOnly ends after the search.
	RateOnly bool
	// Repeats is how often each load of each window is measured. Bursts is how often the burst is.
	Repeats, Bursts int
	Engines         Engines
	// MostCPU is the share of the host's CPU above which a run is void.
	MostCPU float64
	// MostLate is the delay of the client that 1 % of the requests may exceed.
	MostLate time.Duration
	Progress io.Writer // gets a line for each run
}

// Default returns the settings that suit two cores.
func Default() Config {
	return Config{Root: ".", Windows: 3, Requests: 1500, Scale: 4, Loads: []int{60, 90}, Repeats: 2, Bursts: 6,
		Engines: Engines{Workers: 8, BlockTokens: 16, Blocks: 32768, Speedup: 0.5}, MostCPU: 0.6,
		MostLate: 10 * time.Millisecond}
}

// Check returns an error that names the first unusable setting.
func (c *Config) Check() error {
	known := Contestants()
	for _, name := range c.Contestants {
		if !slices.Contains(known, name) {
			return fmt.Errorf("--contestants %q: must be some of %q", name, known)
		}
	}
	for _, load := range c.Loads {
		if load < 1 || load > 100 {
			return fmt.Errorf("--loads %d: must be 1 to 100, in percent", load)
		}
	}
	for _, rate := range c.Rates {
		if !(rate > 0 && rate < 1e6) {
			return fmt.Errorf("--rate %g: must be above 0, in requests per second", rate)
		}
	}
	switch {
	case len(c.Rates) > 1 && len(c.Rates) != c.Windows:
		return fmt.Errorf("--rate: %d rates are given for %d windows: give one for each, or one for all", len(c.Rates),
			c.Windows)
	case c.RateOnly && len(c.Rates) > 0:
		return errors.New("--rate-only searches for the rate, so --rate cannot be given")
	case c.Windows > 0 && len(c.Loads) == 0:
		return errors.New("--loads: is empty; --windows 0 measures bursts only")
	case c.Windows == 0 && c.Bursts == 0:
		return errors.New("--windows 0 with --bursts 0 measures nothing")
	}
	return checkScale(c.Scale)
}
