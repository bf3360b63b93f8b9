package kvcached

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// prepareQUIC serves the caches of other hosts, over QUIC and over TLS.
func (d *Daemon) prepareQUIC() error {
	c := &d.config.QUIC
	if c.Listen == "" && c.tlsLane() == "" {
		return nil
	}
	id, err := d.identity()
	if err != nil {
		return err
	}
	o := transport.ServerOptions{
		Handler: d.peerHandler(), Identity: id, MaxInFlight: int64(c.InFlight), Stripes: c.Stripes,
		Logger: d.log, Audit: d.audit,
		Tuning:    c.tuning(),
		Bandwidth: d.caps(),
		Stamp:     func() wire.Stamp { return wire.Stamp(d.ledger.Stamp()) },
		Rails:     d.rails, Grant: d.config.RDMA.Grant.Std(),
	}
	if o.ResetKey, err = d.resetKey(); err != nil {
		return err
	}
	lane := ""
	for range portTries {
		if lane, err = c.open(&o); err == nil || !strings.HasSuffix(c.Listen, ":0") {
			break
		}
	}
	if err != nil {
		return err
	}
	return d.addPeers(o, lane)
}

// packetSize is the size of a connection's first UDP payloads, in bytes. Every network path carries
// packets of this size.
const packetSize = 1280

func (c *QUICConfig) tuning() transport.Tuning {
	return transport.Tuning{Rate: int64(c.Rate), RTT: c.RTT.Std(), PacketSize: packetSize}
}

// caps returns the bandwidth limits that the server and the pool share.
func (d *Daemon) caps() *transport.Bandwidth {
	if d.bandwidth == nil {
		c := &d.config.QUIC
		d.bandwidth = transport.NewBandwidth(int64(c.Total), int64(c.Total))
	}
	return d.bandwidth
}

// peerHandler serves other caches from this host's tiers and answers their questions for locations.
func (d *Daemon) peerHandler() transport.Handler {
	if v := d.view.Load(); v != nil {
		return transport.OnStore(d.store, v)
	}
	return transport.OnStore(d.store, nil)
}

// portTries is the number of attempts to find a port that is free for UDP and TCP.
const portTries = 64

// open binds both lanes. If listen asks for a free port, a TLS lane without an address of its own
// gets the same port.
func (c *QUICConfig) open(o *transport.ServerOptions) (lane string, err error) {
	if o.UDP, err = openUDP(c.Listen); err != nil || c.tlsLane() == "" {
		return "", err
	}
	address := c.tlsLane()
	if c.TLSListen == "" {
		address = o.UDP[0].LocalAddr().String()
	}
	if o.TCP, lane, err = openFor("quic.tls_listen", "--tls-lane", address, -1); err != nil {
		closeAll(o.UDP)
	}
	return lane, err
}

// addPeers starts the server for other caches, which answers at once.
func (d *Daemon) addPeers(o transport.ServerOptions, lane string) error {
	srv, err := transport.NewServer(o)
	if err != nil {
		closeAll(o.UDP)
		if o.TCP != nil {
			_ = o.TCP.Close()
		}
		return wrapped("quic", err)
	}
	d.metrics.peers = srv
	p := &part{name: "quic", what: "cgn-kv/1 for the caches of other hosts", peers: true}
	if len(o.UDP) > 0 {
		p.where = o.UDP[0].LocalAddr().String()
	} else {
		p.name, p.where, lane = "tls-lane", lane, ""
	}
	d.addStarted(p, func(ctx context.Context) error {
		return d.aroundDevices(ctx, func() error { return srv.Close(ctx) })
	})
	if lane != "" {
		d.addStarted(&part{name: "tls-lane", where: lane, what: "the same over TLS on TCP", peers: true}, nil)
	}
	return nil
}

// openUDP binds the UDP socket; an empty address gives none.
func openUDP(address string) ([]net.PacketConn, error) {
	if address == "" {
		return nil, nil
	}
	c, err := net.ListenPacket("udp", address)
	if err != nil {
		return nil, fmt.Errorf("quic.listen (--quic): %w; stop what uses that port, or give another address "+
			"with --quic", err)
	}
	return []net.PacketConn{c}, nil
}

func closeAll(sockets []net.PacketConn) {
	for _, c := range sockets {
		_ = c.Close()
	}
}

// resetKeyFile has the key for QUIC stateless resets. With this key a restarted daemon tells its
// peers that their connections are gone.
const resetKeyFile = "quic-reset.key"

// resetKey returns the key in the data directory and makes one at the first start; nil: there is no
// directory.
func (d *Daemon) resetKey() (*[32]byte, error) {
	if d.config.Daemon.Data == "" {
		return nil, nil
	}
	name := filepath.Join(d.config.Daemon.Data, resetKeyFile)
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("kvcached.data: %w", err)
	}
	var key [32]byte
	if len(text) == len(key) {
		copy(key[:], text)
		return &key, nil
	}
	_, _ = rand.Read(key[:])
	if err := os.WriteFile(name, key[:], 0o600); err != nil {
		return nil, fmt.Errorf("kvcached.data: %w", err)
	}
	return &key, nil
}
