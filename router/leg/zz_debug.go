package leg

import (
	"fmt"
	"math"
	"os"
	"time"
)

var zzN int
var ZZ = os.Getenv("ZD") != ""

func (l *Leg) zzDump(now time.Time) {
	if zzN++; !ZZ || zzN%100 != 0 {
		return
	}
	m := l.pool.members[0]
	r := m.engine.Kind().Rates()
	fmt.Printf("%d base %.3f token/s %.0f pair %.2e steps %.2f | step %.4f seq %.6f block %.2e n %d/%d out %.0f usual %.0f press %.2f\n", zzN, r.Base, 1/r.Token, r.Pair, r.Steps, r.Step, r.Sequence, r.Block, r.Firsts, r.Gaps, l.picks.forecast.Output, l.picks.forecast.Usual, l.picks.forecast.Pressure)
	for i, at := range l.picks.able {
		t := l.picks.times[i]
		ld := l.pool.members[at].rank.Load()
		fmt.Printf("   w %.3f dec %.0f pressing %d blocks %.0f/%.0f infl %d others %d wait %d fp %.2f fd %.2f inf %.0f q %.0f\n", t.Wait, t.Decoding, l.pool.members[at].rank.Book.Pressing(), t.Blocks, t.Memory, l.picks.cands[i].InFlight, ld.Others, ld.Waiting, t.Prefills, t.Decodes, ld.InFlight.Or(-1), ld.QueueDepth.Or(-1))
	}
	_ = math.Pi
}
