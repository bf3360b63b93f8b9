package transport

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
)

// TestCertificatesChangeUnderLoad replaces the certificates and the CA of two hosts while one pulls
// from the other. The connections stay, and no pull fails. New connections use the new files.
func TestCertificatesChangeUnderLoad(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		t.Parallel()
		dir, was, next := t.TempDir(), t.TempDir(), t.TempDir()
		for _, d := range []string{dir, next} {
			if err := pki.Bootstrap(d, pki.Options{Roles: []pki.Role{pki.KVCached}}); err != nil {
				t.Fatal(err)
			}
		}
		copyFiles(t, dir, was, "ca.crt", "kvcached.crt", "kvcached.key")
		s := newSite(t, ServerOptions{Identity: identity(t, dir, pki.KVCached)}, PoolOptions{})
		want := s.store.fill("b", 100<<10)
		var opened atomic.Int64
		s.pool = newPool(t, PoolOptions{Identity: identity(t, dir, pki.KVCached),
			ListenUDP: func() (net.PacketConn, error) {
				opened.Add(1)
				return net.ListenUDP("udp", nil)
			},
			DialTCP: func(ctx context.Context, address string) (net.Conn, error) {
				opened.Add(1)
				return new(net.Dialer).DialContext(ctx, "tcp", address)
			}})
		p := s.peer(l)
		ctx, stop := context.WithCancel(t.Context())
		var pulling sync.WaitGroup
		defer pulling.Wait()
		defer stop()
		for range 4 {
			pulling.Go(func() {
				for ctx.Err() == nil {
					if got, _, err := get(t.Context(), p, "b"); err != nil || len(got) != len(want) {
						t.Errorf("%d bytes, %v", len(got), err)
					}
				}
			})
		}
		const connections = 4 // stripes of QUIC; with TLS each pull has its own
		eventually(t, "all connections are open", func() bool { return opened.Load() == connections })

		both := slices.Concat(read(t, dir, "ca.crt"), read(t, next, "ca.crt"))
		write(t, dir, "ca.crt", both)
		time.Sleep(pki.CheckEvery + time.Millisecond)
		copyFiles(t, next, dir, "kvcached.crt", "kvcached.key")
		time.Sleep(pki.CheckEvery + time.Millisecond)
		copyFiles(t, next, dir, "ca.crt")
		time.Sleep(pki.CheckEvery + time.Millisecond)

		for from, taken := range map[string]bool{next: true, was: false} {
			s.pool = newPool(t, PoolOptions{Identity: identity(t, from, pki.KVCached)})
			got, _, err := get(t.Context(), s.peer(l), "b")
			if (err == nil) != taken {
				t.Errorf("new certificates: %v; %v", taken, err)
			} else if taken {
				same(t, "pulled", got, want)
			}
		}
		s.pool = newPool(t, PoolOptions{Identity: identity(t, dir, pki.KVCached)})
		if err := s.peer(l).Ping(t.Context()); err != nil {
			t.Error(err)
		}
		if n := opened.Load(); n != connections {
			t.Errorf("%d connections, want %d", n, connections)
		}
	})
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func write(t *testing.T, dir, name string, text []byte) {
	t.Helper()
	at := filepath.Join(dir, name)
	if err := os.WriteFile(at+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(at+".new", at); err != nil {
		t.Fatal(err)
	}
}

func copyFiles(t *testing.T, from, to string, names ...string) {
	t.Helper()
	for _, name := range names {
		write(t, to, name, read(t, from, name))
	}
}
