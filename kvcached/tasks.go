package kvcached

import (
	"context"
	"time"
)

// An engine counts as gone after engineSilence without a report. The daemon looks for silent
// engines every lookEvery.
const (
	engineSilence = time.Minute
	lookEvery     = 5 * time.Second
	loadLook      = 50 * time.Millisecond // interval while the SSD tier's index is loading
)

// tellEvery is the time between two log lines about the loading of the index.
const tellEvery = 2 * time.Second

// tellLoading logs the progress of loading the SSD tier's index until it is loaded.
func (d *Daemon) tellLoading(ctx context.Context) {
	tick := time.NewTicker(loadLook)
	defer tick.Stop()
	told := time.Now()
	for {
		st := d.store.Stats()
		switch p := st.Loading; {
		case !st.HasSSD || p.Fraction >= 1: // the tier itself logs the end of loading
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

// runTasks does the periodic work beside the servers until ctx ends.
func (d *Daemon) runTasks(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			d.index.ExpireReads()
			if n := d.index.Expire(engineSilence); n > 0 {
				d.log.Warn("engines have stopped reporting; what they hold is forgotten", "engines", n, "after",
					engineSilence.String())
			}
		}
	}
}
