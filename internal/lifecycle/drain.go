package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Step is one step of a process's shutdown.
type Step struct {
	Name  string
	Limit time.Duration                   // time limit; 0: until ctx of Drain ends
	Run   func(ctx context.Context) error // must return soon after ctx is done
}

// Drain runs the steps in order, each to its end or its limit, and logs each duration. A step that
// fails or times out does not prevent the next ones. When ctx ends, because of a second signal, the
// remaining steps run with an ended context. Failures of steps with an ended context are expected
// and not logged as warnings. The errors are joined.
func Drain(ctx context.Context, log *slog.Logger, steps ...Step) error {
	var errs []error
	for _, s := range steps {
		start := time.Now()
		err := s.run(ctx)
		took := time.Since(start)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.Name, err))
			if ctx.Err() != nil {
				log.Info("drain step cut short", "step", s.Name, "took", took)
				continue
			}
			log.Warn("drain step failed", "step", s.Name, "took", took, "error", err)
			continue
		}
		log.Info("drain step done", "step", s.Name, "took", took)
	}
	return errors.Join(errs...)
}

func (s Step) run(ctx context.Context) error {
	if s.Limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.Limit)
		defer cancel()
	}
	return s.Run(ctx)
}
