package fleet

import (
	"math"
	"net/netip"
	"testing"
	"time"
)

func TestPaths(t *testing.T) {
	t.Parallel()
	f, n, _ := watched(t)
	at := peerAt(t, n)
	if all := f.Peers(); len(all) != 1 || all[0] != at {
		t.Errorf("%v", all)
	}
	now, c := time.Now(), Counts{}
	take := func(after time.Duration, segments, retransmits, looks uint64) *Path {
		now = now.Add(after)
		c = Counts{RTT: 3 * time.Millisecond, RTTMin: time.Millisecond, Looks: looks, Segments: segments,
			Retransmits: retransmits}
		f.TakePaths(func(p netip.AddrPort) (Counts, bool) { return c, p == at }, now)
		return n.Path()
	}
	if p := take(0, 1000, 10, 1); !math.IsNaN(float64(p.Share)) || p.RTT != 3*time.Millisecond || !p.RTTAt.Equal(now) {
		t.Errorf("%+v", p)
	}
	first := now
	if p := take(time.Second, 1100, 11, 1); p.Share != 0.01 || !p.RTTAt.Equal(first) || p.Segments != 1100 {
		t.Errorf("%+v", p)
	}
	take(pathWindow, 1100, 11, 2)
	if p := take(pathWindow, 1300, 61, 2); p.Share != 0.25 {
		t.Errorf("of the last 10 to 20 s %v", p.Share)
	}
	if p := take(time.Second, 5, 0, 1); !math.IsNaN(float64(p.Share)) {
		t.Errorf("counts that have begun anew: %v", p.Share)
	}
	if v := n.View(now).Path; v == nil || *v.RTTMs != 3 || *v.RTTMinMs != 1 || v.Segments != 5 ||
		v.Retransmitted != nil {
		t.Errorf("%+v", v)
	}
	take(time.Second, 6, 5, 1)
	if p := take(time.Second, 50, 3, 1); !math.IsNaN(float64(p.Share)) {
		t.Errorf("counts that have begun anew, with more segments than before: %v", p.Share)
	}
	if p := take(time.Second, 51, 9, 1); p.Share != 1 {
		t.Errorf("counts that have begun anew between two reads, with more of both: %v", p.Share)
	}
	at = netip.MustParseAddrPort("192.0.2.1:1")
	if p := take(time.Second, 60, 9, 1); p != nil || n.View(now).Path != nil || known(n.Resent()) != nil {
		t.Errorf("nothing is known of it any more: %+v", p)
	}
	at = peerAt(t, n)
	if p := take(time.Second, 70, 9, 1); !math.IsNaN(float64(p.Share)) {
		t.Errorf("counts after a pause: %v", p.Share)
	}
	f.ForgetPaths()
	if n.Path() != nil || n.View(now).Path != nil {
		t.Error("still there")
	}
}

// TestRenew checks that nodes are asked over new connections.
func TestRenew(t *testing.T) {
	t.Parallel()
	f, n, _ := watched(t)
	before := n.Health.CheckPort()
	f.Renew(t.Context())
	eventually(t, f, "another connection", func(*Snapshot) bool { return n.Health.CheckPort() != before })
}
