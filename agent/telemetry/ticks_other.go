//go:build !linux

package telemetry

import (
	"context"
	"time"
)

type ticks struct{ *time.Ticker }

func newTicks(interval time.Duration) (*ticks, error) { return &ticks{time.NewTicker(interval)}, nil }

func (t *ticks) set(interval time.Duration) { t.Reset(interval) }

func (t *ticks) next(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func (t *ticks) stopWith(context.Context) (stop func() bool) { return func() bool { return true } }

func (t *ticks) close() { t.Stop() }
