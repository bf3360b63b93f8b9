//go:build !linux

package agent

import "github.com/cognitora/dataplane/agent/telemetry"

// open is nil: only Linux is asked.
func (c *TelemetryConfig) open() func() (telemetry.Source, error) { return nil }

func (c *TelemetryConfig) examine(*problems) {}
