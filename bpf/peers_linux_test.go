package bpf

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestTablesOfCounts: the table keeps its ID as long as the programs stay, and gets another when
// they are loaded anew.
func TestTablesOfCounts(t *testing.T) {
	h := newHost(t)
	layout := must[uint64](t)(PeersLayout())
	id := func() uint32 {
		t.Helper()
		_ = h.load().Close() // the programs stay
		events := must[*Events](t)(OpenEvents(h.root))
		defer events.Close()
		counts := must[*PeerCounts](t)(NewPeerCounts(must[int](t)(unix.FcntlInt(uintptr(events.PeersFD()),
			unix.F_DUPFD_CLOEXEC, 0)), layout))
		defer counts.Close()
		return counts.ID()
	}
	first := id()
	if again := id(); first == 0 || again != first {
		t.Errorf("table %d of the same programs, before it was %d", again, first)
	}
	must[int](t)(Clean(h.root))
	if other := id(); other == 0 || other == first {
		t.Errorf("table %d of other programs, before it was %d", other, first)
	}
}
