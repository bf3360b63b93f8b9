package leg

import (
	"math"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/predict"
	"github.com/cognitora/dataplane/router/prefix"
)

// TestTheBooksCountWhatThePickExpects checks that a node is charged the prefill for which it was
// picked, whichever tiers have the prompt's blocks.
func TestTheBooksCountWhatThePickExpects(t *testing.T) {
	const blocks = 100
	for _, c := range []struct {
		name                       string
		device, coming, host, disk int32
		work, charged              float64 // blocks that are expected to be computed, and that others see waiting
	}{
		{name: "nothing", work: 100, charged: 100},
		{name: "device", device: 40, coming: 40, work: 60, charged: 60},
		{name: "coming", device: 20, coming: 40, work: 60, charged: 80},
		{name: "host", host: 40, disk: 40, work: 70, charged: 70},
		{name: "disk", disk: 40, work: 90, charged: 90},
		{name: "all on the disk", disk: 100, work: 75, charged: 75},
		{name: "all tiers", device: 20, coming: 20, host: 40, disk: 80, work: 55, charged: 55},
	} {
		d := still(t, Options{}, twoNodes()[:1]...)
		decide(t, d, predicted)
		l, now := d.Leg(asked(t, d, chat(blocks*prefix.BlockBytes)), Question{}, nil), time.Now()
		if err := l.resolve(); err != nil {
			t.Fatal(err)
		}
		l.prompt.MeasureBlocks(l.Request, blocks, 1)
		l.prompt.Suppose(0, max(c.device, c.host, c.disk))
		l.picks.policy = d.policy.Load()
		l.candidates(now)
		l.foreseeAll(now)
		at := &l.picks.cands[0]
		at.Matched, at.Coming, at.Host, at.Disk = c.device, c.coming, c.host, c.disk // as if reported
		var why policy.Explanation
		a, pick := l.spare(), l.pick(now, &why)
		a.member = l.pool.members[0]
		a.member.rank.Acquire()
		l.charge(a, pick, now)
		work := a.forecast.first.Work
		cached := int64((blocks - c.work) * prefix.BlockTokens)
		if want := predict.Prompt(blocks*prefix.BlockTokens, cached); work != want {
			t.Errorf("%s: %+v, want %+v", c.name, work, want)
		}
		expected, book := why.Terms[0].Expected.Prefill, &a.member.rank.Book
		if backlog := book.Backlog(now).Seconds(); math.Abs(backlog-expected) > 1e-6 || expected == 0 {
			t.Errorf("%s: the pick expects a prefill of %v s, and the book has %v s", c.name, expected, backlog)
		}
		if book.WaitingTokens() != int64(c.charged*prefix.BlockTokens) {
			t.Errorf("%s: %d tokens wait, want %v blocks", c.name, book.WaitingTokens(), c.charged)
		}
		l.drop(a)
		l.recycle()
		noneLeft(t, d.fleet.Load().Nodes)
	}
}
