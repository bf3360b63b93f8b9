//go:build !linux

package agent

import (
	"errors"

	"github.com/cognitora/dataplane/agent/peerevents"
	"github.com/cognitora/dataplane/agent/telemetry"
)

func (c *TelemetryConfig) openEvents() (peerevents.Source, error) {
	return nil, errors.New("only Linux tells of events")
}

func layout() (uint64, error) { return 0, nil }

// open returns nil: figures are read on Linux only.
func (c *TelemetryConfig) open() func() (telemetry.Source, error) { return nil }

func (c *TelemetryConfig) examine(*problems) {}
