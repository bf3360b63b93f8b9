//go:build linux && cgo && rdma

package kvcached

import (
	"os"
	"testing"
)

// TestSpeedOfTwoHosts prints the cost of blocks for both hosts, by RDMA and over QUIC. make
// perf-rdma runs this test. The test checks no value.
func TestSpeedOfTwoHosts(t *testing.T) {
	switch os.Getenv("VM_HOST") {
	case "1":
		newOwner(t).obey()
	case "2":
		h := newReader(t)
		h.prices()
		h.tell(order{Do: "end"})
	default:
		t.Skip("VM_HOST is not set: make perf-rdma runs this in two virtual machines")
	}
}

func (h *reader) prices() {
	daemons, stop := h.lanes()
	defer stop()
	h.t.Log("| 24 blocks, 8 at a time | MiB | MiB/s | CPU for a MiB of the reader's process (of its machine), ms | " +
		"of the owner's process (of its machine), ms | times that the owner's threads were given a CPU, for a MiB | " +
		"messages for grants |")
	h.t.Log("|---|---|---|---|---|---|---|")
	for _, size := range []int{64 << 10, 256 << 10, 1 << 20} {
		var sums [2]bill
		for range 3 { // the lanes take turns
			for i, lane := range []string{"RDMA", "QUIC"} {
				sums[i].add(h.counts(daemons[i], lane, size))
			}
		}
		for i, lane := range []string{"RDMA", "QUIC"} {
			sums[i].print(h.t, lane, size)
		}
	}
}

// counts returns a bill of blocks that all came over one lane.
func (h *reader) counts(d *Daemon, lane string, size int) bill {
	h.t.Helper()
	for range 9 {
		if b := h.charge(d, movesAtOnce, size); b.by(lane, movesAtOnce, size) {
			return b
		}
	}
	h.t.Fatalf("%d blocks of %d bytes never came by %s alone", movesAtOnce, size, lane)
	return bill{}
}

func (b *bill) add(n bill) {
	b.took, b.cpu, b.host, b.ours, b.oursHost = b.took+n.took, b.cpu+n.cpu, b.host+n.host, b.ours+n.ours,
		b.oursHost+n.oursHost
	b.runs, b.grants, b.sent = b.runs+n.runs, b.grants+n.grants, b.sent+n.sent
	b.grantedBytes += n.grantedBytes
}

// print prints a row. CPU is in ms for each MiB: the process's CPU and, in brackets, the machine's.
func (b *bill) print(t *testing.T, lane string, size int) {
	mib := (b.grantedBytes + b.sent) / (1 << 20)
	each := func(s float64) float64 { return s * 1e3 / mib }
	t.Logf("| %d KiB by %s | %.1f | %.1f | %.1f (%.1f) | %.1f (%.1f) | %.1f | %.0f |", size>>10, lane, mib,
		mib/b.took.Seconds(),
		each(b.ours.Seconds()), each(b.oursHost.Seconds()), each(b.cpu.Seconds()), each(b.host.Seconds()),
		float64(b.runs)/mib, b.grants)
}
