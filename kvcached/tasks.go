package kvcached

import (
	"context"
	"time"
)

// Engines that have not reported for engineSilence are taken for gone; that is looked at every
// lookEvery.
const (
	engineSilence = time.Minute
	lookEvery     = 5 * time.Second
	loadLook      = 50 * time.Millisecond // the same for the index that is being loaded
)

// tellEvery is the time between two lines about an index that is being loaded.
const tellEvery = 2 * time.Second

// tellLoading logs how far the SSD tier's index is loaded until it is.
func (d *Daemon) tellLoading(ctx context.Context) {
	tick := time.NewTicker(loadLook)
	defer tick.Stop()
	told := time.Now()
	for {
		st := d.store.Stats()
		switch p := st.Loading; {
		case !st.HasSSD || p.Fraction >= 1: // the tier itself says when it is loaded
			return
		case time.Since(told) >= tellEvery:
			told = time.Now()
			d.log.Info("the SSD tier's index is being loaded, blocks are served meanwhile", "blocks", p.Records,
				"percent", int(100*p.Fraction))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// runTasks does what goes on beside the servers until ctx ends.
func (d *Daemon) runTasks(ctx context.Context) {
	d.tellLoading(ctx)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if n := d.index.Expire(engineSilence); n > 0 {
				d.log.Warn("engines have stopped to report, what they hold is forgotten", "engines", n, "after",
					engineSilence.String())
			}
		}
	}
}
