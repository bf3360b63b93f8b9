package transport

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestNoCardAtAll: where all cards are to be used and there is none, log and table say so, until
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

// TestNamedCardMissing: the setting and the command that tells more are named.
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

// TestDemandedIsSaidAgain: as an error, once a minute as long as it cannot be, and each reason
// once.
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

// TestMissed: that a pair broke while nothing was asked for is nothing that was missed.
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

// TestLossIsSaid: that a peer is not read by RDMA any more is a warning, that it was not yet is
// none.
func TestLossIsSaid(t *testing.T) {
	var log bytes.Buffer
	b := newGrantee(nil, nil, Trusted, slog.New(slog.NewTextHandler(&log, nil)), nil)
	b.told("not yet")
	b.s = &readSession{b: b}
	b.told("")
	b.s = nil
	b.told("a pair broke")
	b.told("still")
	if text := log.String(); strings.Count(text, "level=WARN") != 1 ||
		!strings.Contains(text, `any more, they go over QUIC or TLS meanwhile" reason="a pair broke"`) {
		t.Error(text)
	}
}
