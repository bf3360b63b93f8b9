package events

import (
	"context"
	"errors"
	"time"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
)

// The times of reports.
const (
	signOfLife = 10 * time.Second // between two reports without changes
	staleAfter = 5 * time.Second  // between attempts while a later incarnation of the engine reports
	snapshotBy = 4096             // slots of a table examined per hold of the lock
)

// reporting is the state of the reports to the sink. Follower.mu guards it.
type reporting struct {
	epoch  uint64
	number uint64 // number of the next report
	fresh  bool   // the next report begins anew
	told   bool   // the sink may hold blocks of the engine
	slot   uint32 // next slot of the snapshot; 0: no snapshot is running
	// turn counts new beginnings, so that a running report does not count for a later beginning.
	turn uint64
	// reading is what the engine can read of the daemon's blocks of the model served. Empty: it is
	// not made yet.
	reading []string
	served  string
	// moved says that the engine reads another namespace than the last report has said.
	moved bool
	// failing tells whether the sink has refused the last report.
	failing bool
}

// complaint is what the log says about a sink that takes no reports: its beginning and its end, but
// not more than once in complainEvery. The goroutine of the reports owns it.
type complaint struct {
	said bool      // the log has the beginning
	last time.Time // of the last beginning in the log
}

// complainEvery is the time between two beginnings in the log.
const complainEvery = time.Minute

// begins logs that reports fail.
func (c *complaint) begins(f *Follower, err error) {
	if now := time.Now(); !c.said && (c.last.IsZero() || now.Sub(c.last) >= complainEvery) {
		c.said, c.last = true, now
		f.log.Warn("reports of what the engine has cached are not taken, so routers do not learn of it; trying again",
			"to", f.o.SinkName, "error", err)
	}
}

// ends logs that a report was taken.
func (c *complaint) ends(f *Follower) {
	if c.said {
		c.said = false
		f.log.Info("reports of what the engine has cached are taken again", "to", f.o.SinkName)
	}
}

// begin makes the next reports tell all blocks anew.
func (r *reporting) begin(out *outbox) {
	out.reset()
	r.fresh, r.slot = true, 1
	r.turn++
}

// renew is begin for another, later epoch.
func (r *reporting) renew(out *outbox) {
	r.begin(out)
	r.epoch = max(uint64(time.Now().UnixNano()), r.epoch+1)
}

// parcel is a report with the memory for its events.
type parcel struct {
	report  residency.Report
	digests []block.Digest
	turn    uint64
}

// reportAll sends reports until ctx ends.
func (f *Follower) reportAll(ctx context.Context) {
	defer f.goodbye()
	p := &parcel{digests: make([]block.Digest, 0, reportDigests)}
	life := time.NewTicker(signOfLife)
	defer life.Stop()
	alive := false
	tell := telling{retry: time.NewTimer(retryChunks)}
	defer tell.retry.Stop()
	var complain complaint
	for wait := retryFirst; ctx.Err() == nil; {
		if !f.fill(p, alive) {
			if f.tellChunks(&tell) {
				continue
			}
			select {
			case <-ctx.Done():
			case <-f.wake:
			case <-tell.retry.C:
			case <-life.C:
				alive = true
			}
			continue
		}
		alive = false
		err := f.o.Sink.Report(&p.report)
		await.Wake(f.moved)
		if err == nil {
			wait = retryFirst
			f.counts.reports.Add(1)
			f.sent(p)
			complain.ends(f)
			f.tellChunks(&tell)
			continue
		}
		f.counts.refused.Add(1)
		f.refused()
		if errors.Is(err, residency.ErrGap) {
			continue
		}
		f.log.Debug("what the engine has cached is not taken, trying again", "error", err)
		if errors.Is(err, residency.ErrStale) {
			f.log.Warn("a process that began later reports what this engine has cached, or the clock was set back; "+
				"trying again", "error", err)
			wait = f.stale
		} else {
			complain.begins(f, err)
		}
		if !await.For(ctx, wait) {
			return
		}
		wait = min(2*wait, retryLast)
	}
}

// fill makes the next report. false: there is nothing to report. alive allows a report without
// events, as a sign of life.
func (f *Follower) fill(p *parcel, alive bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &f.report
	if !f.following {
		f.out.reset()
		p.report = residency.Report{Engine: f.o.Engine, Epoch: r.epoch, Number: r.number, Gone: true}
		return r.told
	}
	if r.epoch == 0 {
		r.renew(&f.out)
	}
	p.report = residency.Report{Engine: f.o.Engine, Epoch: r.epoch, Number: r.number, Fresh: r.fresh,
		Events: p.report.Events[:0], Reads: f.reads()}
	p.digests, p.turn = p.digests[:0], r.turn
	if r.fresh {
		r.slot, r.told = 1, true
		f.known.chunks.repeat()
		f.counts.snapshot.Add(1)
	}
	if r.slot > 0 {
		f.snapshot(p)
		return true
	}
	p.report.Events, p.digests = f.out.take(p.report.Events, p.digests, f.namespace)
	alive, r.moved = alive || r.moved, false
	return len(p.report.Events) > 0 || alive
}

// snapshot puts the next blocks of the table into a report. Changes during the snapshot wait in the
// outbox, and are reported after it.
func (f *Follower) snapshot(p *parcel) {
	r, t := &f.report, f.known.table
	for range snapshotBy {
		if r.slot >= uint32(len(t.blocks)) {
			r.slot = 0
			return
		}
		b := &t.blocks[r.slot]
		if len(p.digests)+media*int(b.count) > reportDigests || len(p.report.Events)+media > reportEvents {
			return
		}
		for tier := residency.Device; tier <= residency.Shared; tier <<= 1 {
			if b.tiers&tier == 0 || b.count == 0 {
				continue
			}
			from := len(p.digests)
			p.digests = append(p.digests, f.known.table.digestsOf(r.slot)...)
			e := residency.Event{
				Kind: residency.Stored, Namespace: f.namespace, Tier: tier, Adapter: f.known.names[b.label],
				Digests: p.digests[from:len(p.digests):len(p.digests)],
			}
			if !b.root {
				e.Parent = *t.parentOf(r.slot)
			}
			p.report.Events = append(p.report.Events, e)
		}
		r.slot++
	}
}

// sent notes that the sink has taken a report.
func (f *Follower) sent(p *parcel) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &f.report
	r.failing = false
	switch {
	case p.report.Gone:
		r.told = false
	case r.turn == p.turn:
		r.number++
		r.fresh = false
	}
}

// refused handles a report that the sink has refused: all blocks will be reported anew.
func (f *Follower) refused() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.report.failing = true
	f.report.begin(&f.out)
}

// goodbye tells the sink that the engine reports no more.
func (f *Follower) goodbye() {
	f.mu.Lock()
	r := f.report
	f.following, f.report.told = false, false
	f.mu.Unlock()
	if r.told {
		_ = f.o.Sink.Report(&residency.Report{Engine: f.o.Engine, Epoch: r.epoch, Number: r.number, Gone: true})
	}
}
