package audit

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cognitora/dataplane/internal/logfile"
	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/internal/rights"
)

// Config is the section [audit] of a daemon's configuration.
type Config struct {
	Log      string `toml:"log" empty:"refused" flag:"audit-log" help:"file of the audit log, which only its owner may read; -: standard output; syslog: the host's syslog (/dev/log, facility authpriv); left out: no audit log"`
	Refusals int    `toml:"refusals_per_second" default:"10" help:"most lines a second about refused identities with one reason, or acts of one RESP user; the next line tells how many were left out"`
}

// Validate returns an error if too few refusals may have lines.
func (c *Config) Validate() error {
	if c.Refusals < 1 {
		return fmt.Errorf("audit.refusals_per_second: %d is too small; use 1 or more", c.Refusals)
	}
	return nil
}

// Examine checks that the log can be written.
func (c *Config) Examine() error {
	if !c.File().Named() {
		return nil
	}
	return problem(cmp.Or(rights.Appendable(c.Log), c.foreign()))
}

// foreign returns an error if the log is a file of something else, such as a key, which lines would
// destroy. A file that cannot be read passes.
func (c *Config) foreign() error {
	if !c.File().Named() {
		return nil
	}
	if info, err := os.Stat(c.Log); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(c.Log)
	if err != nil {
		return nil
	}
	defer f.Close()
	first := make([]byte, 1)
	if n, _ := f.Read(first); n == 1 && first[0] != '{' {
		return fmt.Errorf("%s has something else than an audit log", c.Log)
	}
	return nil
}

// File returns the log's place.
func (c *Config) File() logfile.Place {
	return logfile.Place{Setting: "audit.log", File: c.Log, Mode: FileMode}
}

// Open opens the log of a daemon. The result is nil without one. Lines that are lost are counted
// and logged to log.
func (c *Config) Open(program string, m Metrics, log *slog.Logger) (*Log, error) {
	if c.Log == "" {
		return nil, nil
	}
	if err := c.foreign(); err != nil {
		return nil, problem(err)
	}
	outage := logfile.Outage{Log: log, Name: "audit log"}
	l, err := New(Options{
		To: c.Log, Program: program, RefusalsPerSecond: c.Refusals, Suppressed: m.Suppressed.Inc,
		Lost: func(lines int, err error) {
			m.Lost.Add(float64(lines))
			if err != nil {
				outage.Failed(err, lines)
			}
		},
		Worked: outage.Worked,
	})
	return l, problem(err)
}

func problem(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("audit.log: %w; name a file in a directory that the daemon can write to (--audit-log FILE), "+
		"or - for standard output, or syslog", err)
}

// Metrics are the metrics of an audit log.
type Metrics struct{ Lost, Suppressed prometheus.Counter }

// NewMetrics defines the metrics. prefix begins their names, such as cgn_router.
func NewMetrics(s *metric.Set, prefix string) Metrics {
	return Metrics{
		Lost: s.Counter(prefix+"_audit_lost_total",
			"Audit log lines lost: the writer was behind, or a write has failed.").WithLabelValues(),
		Suppressed: s.Counter(prefix+"_audit_suppressed_total", "Refused identities, and acts of RESP users, without "+
			"an audit log line of their own (audit.refusals_per_second); another line has their number.").WithLabelValues(),
	}
}
