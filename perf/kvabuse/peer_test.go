package kvabuse

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/client"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// peers returns a pool of connections like another cache's, with the certificate of cgn-ctl. The
// connections come from 127.0.0.host, because each address has its own limit of transfers in
// progress.
func peers(t *testing.T, d *daemon, host byte) *transport.Pool {
	t.Helper()
	id, err := pki.Load(pki.FilesIn(filepath.Join(d.data, "pki"), pki.Ctl))
	if err != nil {
		t.Fatal(err)
	}
	from := net.IPv4(127, 0, 0, host)
	pool, err := transport.NewPool(transport.PoolOptions{
		Identity:  id,
		ListenUDP: func() (net.PacketConn, error) { return net.ListenUDP("udp", &net.UDPAddr{IP: from}) },
		DialTCP: func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}).DialContext(ctx, "tcp", address)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// pull gets a block over a lane. before runs when the daemon has offered the block and nothing has
// been read.
func pull(t *testing.T, pool *transport.Pool, d *daemon, lane transport.Lane, s *subject, before func()) error {
	peer, err := pool.Peer(transport.Target{Address: d.quic, Lane: lane})
	if err != nil {
		return err
	}
	var into []byte
	_, err = peer.Get(t.Context(), transport.Get{Addr: s.addr, Namespace: s.namespace,
		Alloc: func(_ transport.Found, n int) ([]byte, error) {
			before()
			into = make([]byte, n)
			return into, nil
		}})
	if err == nil {
		_, err = checkPayload(s.name, into)
	}
	return err
}

// TestPeersThatStopReading requests 16 MiB many times over both lanes, and reads none of it.
func TestPeersThatStopReading(t *testing.T) {
	d := newDaemon(t, "--ram", "256MiB", "--ssd", "0")
	d.start(t)
	g := newGood(t, d)
	s := storeLarge(t, d, 16<<20)
	was := d.memory(t)
	let := make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	defer sync.OnceFunc(func() { close(let) })()
	for i, lane := range []transport.Lane{transport.QUIC, transport.TLS} {
		stuck := peers(t, d, byte(2+i))
		const at = 16 // connections of a pool over TLS
		begun := make(chan struct{}, 2*at)
		for range at {
			// it is interrupted
			all.Go(func() { _ = pull(t, stuck, d, lane, s, func() { begun <- struct{}{}; <-let }) })
		}
		for range at {
			select {
			case <-begun:
			case <-time.After(soon):
				t.Fatal("pulls do not begin")
			}
		}
		behave(t, d, g, fmt.Sprintf("%d peers that stop reading over %s", at, lane), was)
		other, began := peers(t, d, 1), time.Now()
		if err := pull(t, other, d, lane, s, func() {}); err != nil {
			t.Errorf("another peer over %s: %v", lane, err)
		}
		t.Logf("another peer pulls 16 MiB over %s in %s", lane, time.Since(began).Round(time.Millisecond))
	}
	eventually(t, "what they hold is taken back", func() bool { return d.metrics(t)["ram_held_bytes"] == 0 })
	m := d.metrics(t)
	t.Logf("%.0f stalled, %.0f given up; own memory %s more", m["peer_stalled_total"], m["peer_gave_up_total"],
		mib(d.memory(t).anonymous-was.anonymous))
}

// fill puts blocks of 1 MiB until there is no room. fill leases each, or pins it if no more can be
// leased.
func fill(t *testing.T, lease leaseWay, subjects []*subject) (views []*client.View, pinned int) {
	t.Helper()
	for _, s := range subjects {
		if err := lease.put(t.Context(), s, makePayload(s.name, 1, 1<<20-8192), putOptions{}); err != nil {
			if !errors.Is(err, errFull) {
				t.Fatal(err)
			}
			break
		}
		if v, err := lease.Get(t.Context(), s.addr); err == nil {
			views = append(views, v)
		} else if !errors.Is(err, client.ErrQuota) {
			t.Fatal(err)
		} else if n, err := lease.Pin(t.Context(), time.Now().Add(time.Minute), s.addr); err != nil || n != 1 {
			t.Fatal(n, err)
		} else {
			pinned++
		}
	}
	return views, pinned
}

// TestArenaFullOfLeases leases and pins the whole arena. Every protocol refuses puts plainly, and
// works again afterwards.
func TestArenaFullOfLeases(t *testing.T) {
	d := newDaemon(t, "--ram", "32MiB", "--ssd", "0", "--lease.duration", "60s", "--lease.max_leased", "32MiB")
	d.start(t)
	w := d.connect(t)
	defer w.close()
	subjects := slices.DeleteFunc(makeSubjects(200), func(s *subject) bool { return len(s.ways) < 4 })
	views, pinned := fill(t, w.by["lease"].(leaseWay), subjects[:60])
	t.Logf("%d blocks of 1 MiB leased and %d pinned in an arena of 32 MiB", len(views), pinned)
	if len(views)+pinned < 31 || pinned == 0 {
		t.Error("there is still room, or leases alone can fill the arena")
	}
	late := subjects[70]
	payload := makePayload(late.name, 1, 2<<20)
	for _, by := range late.ways {
		err := w.by[by].put(t.Context(), late, payload, putOptions{})
		if !errors.Is(err, errFull) {
			t.Errorf("%s: %v", by, err)
		}
		t.Logf("%s: %v", by, err)
	}
	pool := peers(t, d, 1)
	peer, err := pool.Peer(transport.Target{Address: d.quic, Lane: transport.TLS})
	if err != nil {
		t.Fatal(err)
	}
	put := transport.Put{Item: transport.Item{Addr: late.addr, Namespace: late.namespace}, Payload: payload,
		CRC: block.Sum(payload)}
	if err := peer.Put(t.Context(), put); !errors.Is(err, wire.Busy) {
		t.Errorf("a peer: %v", err)
	}
	for _, s := range subjects[:20] {
		if b, err := w.by["resp"].get(t.Context(), s); err != nil {
			t.Error("what is there is not read any more:", err)
		} else if _, err := checkPayload(s.name, b); err != nil {
			t.Error(err)
		}
	}
	for _, v := range views {
		if err := v.Verify(); err != nil {
			t.Error(err)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "puts work again", func() bool {
		return w.by["resp"].put(t.Context(), late, payload, putOptions{}) == nil
	})
	for _, by := range late.ways {
		if err := w.by[by].put(t.Context(), late, payload, putOptions{}); err != nil {
			t.Errorf("%s, after the release: %v", by, err)
		}
	}
}

// TestGarbage sends random bytes to every port, alone and after the beginning of a valid message.
func TestGarbage(t *testing.T) {
	d := newDaemon(t, "--ram", "64MiB", "--ssd", "128MiB")
	d.start(t)
	g := newGood(t, d)
	was := d.memory(t)
	prefixes := []string{
		"", "*3\r\n$3\r\nSET\r\n", "*2147483647\r\n", "$-5\r\n", "GET ",
		"PUT /a/b HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n", "GET /a?list-type=2&",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "\xc0\x00\x00\x00\x01\x08",
	}
	sent := 0
	for range 60 {
		for _, p := range prefixes {
			b := make([]byte, 1500)
			_, _ = rand.Read(b)
			b = append([]byte(p), b...)
			for _, at := range []struct{ network, address string }{
				{"tcp", d.resp}, {"tcp", d.s3}, {"tcp", d.quic}, {"udp", d.quic}, {"unix", d.grpc}, {"unix", d.lease}, {"tcp", d.admin},
			} {
				c, err := net.DialTimeout(at.network, at.address, soon)
				if err != nil {
					t.Fatalf("%s: %v", at.address, err)
				}
				_, _ = c.Write(b)
				_ = c.Close()
				sent++
			}
		}
	}
	sent += garbageInTLS(t, d)
	behave(t, d, g, fmt.Sprintf("after garbage on %d connections", sent), was)
	s := storeLarge(t, d, 1<<20)
	w := d.connect(t)
	defer w.close()
	for _, by := range s.ways {
		if _, err := w.by[by].get(t.Context(), s); err != nil {
			t.Errorf("%s: %v", by, err)
		}
	}
	for _, lane := range []transport.Lane{transport.QUIC, transport.TLS} {
		if err := pull(t, peers(t, d, 1), d, lane, s, func() {}); err != nil {
			t.Errorf("%s: %v", lane, err)
		}
	}
	m := d.metrics(t)
	t.Logf("%.0f handshakes failed, %.0f bad lease frames, %.0f errors of protocol over RESP",
		m["peer_failed_handshakes_total"], m["lease_bad_frames_total"], m["resp_protocol_errors_total"])
}

// garbageInTLS sends garbage after a valid handshake.
func garbageInTLS(t *testing.T, d *daemon) (sent int) {
	t.Helper()
	id, err := pki.Load(pki.FilesIn(filepath.Join(d.data, "pki"), pki.Ctl))
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		conf, err := id.Client("", pki.KVCached)
		if err != nil {
			t.Fatal(err)
		}
		conf.NextProtos = []string{wire.ALPN}
		c, err := tls.Dial("tcp", d.quic, conf)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4096)
		_, _ = rand.Read(b)
		_, _ = c.Write(b)
		_ = c.Close()
		sent++
	}
	return sent
}
