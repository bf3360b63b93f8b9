//go:build linux && cgo && rdma

package kvcached

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// program runs a program of the host and returns its output.
func program(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// releaseCard makes a daemon close this host's card. Then the kernel deletes the card, which needs
// all users to have closed it, and makes it again.
func releaseCard(t *testing.T, sock string) {
	t.Helper()
	card := os.Getenv("RDMA_DEVICE")
	said := program(t, "cgn-ctl", "rdma", "release", card, "--sock", sock)
	if !strings.Contains(said, card+" is closed, and with it ") {
		t.Error(said)
	}
	program(t, "rdma", "link", "delete", card)
	t.Log(said, "and deleted")
	program(t, "rdma", "link", "add", card, "type", "rxe", "netdev", "eth0")
}

// dropRoCE makes this host's network lose all packets between cards and no others. A switch with a
// wrong setup loses the same packets.
func dropRoCE(t *testing.T) {
	t.Helper()
	program(t, "tc", "qdisc", "add", "dev", "eth0", "ingress")
	program(t, "tc", strings.Fields("filter add dev eth0 parent ffff: protocol ip u32 match ip protocol 17 0xff "+
		"match ip dport 4791 0xffff action drop")...)
}

func letRoCEThrough(t *testing.T) {
	t.Helper()
	program(t, "tc", "qdisc", "del", "dev", "eth0", "ingress")
}

// cards tests failures of the cards and of their network while the hosts themselves reach each
// other.
func (h *reader) cards(d *Daemon, from, n, size int) {
	h.fault(d, "RoCE is lost on the way", from, n, size, func(l *load) {
		h.tell(order{Do: "drop RoCE"})
		h.streams(l)
		h.tell(order{Do: "let RoCE through"})
	})
	h.fault(d, "the owner's card is taken away", from, n, size, func(*load) { h.tell(order{Do: "release the card"}) })
	h.fault(d, "the reader's card is taken away", from, n, size, func(*load) { releaseCard(h.t, d.At("grpc-sock")) })
}

// streams waits until blocks come over QUIC and none by RDMA.
func (h *reader) streams(l *load) {
	h.t.Helper()
	awaitThat(h.t, "blocks come by QUIC", func() bool {
		reads, right := l.d.pool.Stats().RDMA.Reads, l.right.Load()
		awaitThat(h.t, "blocks come", func() bool { return l.right.Load() >= right+20 })
		return l.d.pool.Stats().RDMA.Reads == reads && h.path(l.d).Lane == "quic"
	})
}
