package transport

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestNoCardAtAll: all cards are wanted and the host has none. The log and the table say so until
// there is one.
func TestNoCardAtAll(t *testing.T) {
	for _, demanded := range []bool{false, true} {
		var log bytes.Buffer
		f := newFabric()
		r := newRails(t, RailsOptions{Wanted: []string{AnyCard}, Present: f.present("rxe0"), Open: f.open,
			Memory: memory(t, 1<<20), Poll: time.Hour, Demanded: demanded,
			Logger: slog.New(slog.NewTextHandler(&log, nil))})
		r.look()
		level := map[bool]string{false: "WARN", true: "ERROR"}[demanded]
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "level="+level) ||
			!strings.Contains(text, "rdma.devices is auto") || !strings.Contains(text, "cgn-ctl rdma check") {
			t.Error(text)
		}
		if all := r.Cards(); len(all) != 1 || all[0].Name != AnyCard || all[0].Address != "" ||
			all[0].Why != errNone.Error() || len(r.Open()) != 0 {
			t.Errorf("%+v", all)
		}
		if why := r.lack().Error(); why != "no card is open here: auto: "+errNone.Error() {
			t.Error(why)
		}
		f.plug("rxe0", "10.0.0.1")
		r.look()
		if all := r.Cards(); len(all) != 1 || all[0].Name != "rxe0" || all[0].Address == "" {
			t.Errorf("%+v", all)
		}
		if why := r.lack().Error(); !strings.HasPrefix(why, "rdma.trusted_networks is empty") ||
			!strings.Contains(why, "rxe0, 10.0.0.1") {
			t.Error(why)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestNamedCardMissing: the reason names the setting, and the command that tells more.
func TestNamedCardMissing(t *testing.T) {
	f := newFabric()
	r := newRails(t, RailsOptions{Wanted: []string{"mlx5_0"}, Present: f.present(), Open: f.open,
		Memory: memory(t, 1<<20), Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, Logger: quiet()})
	defer r.Close()
	for _, part := range []string{"mlx5_0: the kernel has no device", "rdma.devices", "cgn-ctl rdma check"} {
		if why := r.lack().Error(); !strings.Contains(why, part) {
			t.Errorf("%q is missing in %q", part, why)
		}
	}
}

// TestDemandedIsSaidAgain: demanded RDMA that fails is an error in the log once a minute. A new
// reason is logged at once.
func TestDemandedIsSaidAgain(t *testing.T) {
	var log bytes.Buffer
	b := newGrantee(nil, nil, Demanded, slog.New(slog.NewTextHandler(&log, nil)), nil)
	said := func(want int) {
		t.Helper()
		b.told("this is why")
		if text := log.String(); strings.Count(text, "level=ERROR") != want ||
			strings.Count(text, "this is why") != want {
			t.Error(text)
		}
	}
	said(1)
	said(1)
	b.said = b.said.Add(-errorEvery)
	said(2)
	said(2)
}

// TestMissed: a pair that breaks while no block is requested does not count as missed.
func TestMissed(t *testing.T) {
	inVirtualTime(t, grantSiteOptions{}, func(t *testing.T, l *grantSite, p *Peer) {
		l.offer("b", 100_000)
		l.f.unplug("near0")
		time.Sleep(time.Hour)
		if s := p.status(); s.RDMA || s.Error == "" || !s.Missed.IsZero() {
			t.Errorf("%+v", s)
		}
		if _, _, err := l.read(t.Context(), p, "b"); err != nil {
			t.Fatal(err)
		}
		if s := p.status(); s.RDMA || time.Since(s.Missed) > time.Minute {
			t.Errorf("%+v", s)
		}
	})
}

// TestLossIsSaid: the end of RDMA to a peer is a warning. RDMA that has not begun yet causes no
// warning.
func TestLossIsSaid(t *testing.T) {
	var log bytes.Buffer
	b := newGrantee(nil, nil, Trusted, slog.New(slog.NewTextHandler(&log, nil)), nil)
	b.told("not yet")
	b.s = &readSession{grantee: b}
	b.told("")
	b.s = nil
	b.told("a pair broke")
	b.told("still")
	if text := log.String(); strings.Count(text, "level=WARN") != 1 ||
		!strings.Contains(text, `any more, they go over QUIC or TLS meanwhile" reason="a pair broke"`) {
		t.Error(text)
	}
}
