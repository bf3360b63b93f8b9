package transport

import (
	"crypto/tls"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// Tuning adapts QUIC to the network between the hosts. Both sides need the same Tuning.
type Tuning struct {
	Rate int64         // bytes per second that one connection may reach; 0: 1.25e9
	RTT  time.Duration // round trip between hosts; 0: 2 ms
	// PacketSize is the bytes of the first packets: 1452 if the whole path allows 1500; 0: 1280.
	// QUIC tries larger ones later.
	PacketSize uint16
	Idle       time.Duration // a connection that is silent for this long is dead; 0: 10 s
	KeepAlive  time.Duration // pause between keep-alives of an idle connection; 0: 3 s
	// Receive bounds the bytes that all peers together may make this side buffer; 0: 1 GiB.
	// Connections beyond it are refused.
	Receive int64
}

// Bounds of one connection's window in bytes.
const (
	minWindow = 1 << 20
	maxWindow = 32 << 20
)

func (t Tuning) withDefaults() Tuning {
	if t.Rate <= 0 {
		t.Rate = 1_250_000_000
	}
	if t.RTT <= 0 {
		t.RTT = 2 * time.Millisecond
	}
	if t.Idle <= 0 {
		t.Idle = 10 * time.Second
	}
	if t.KeepAlive <= 0 {
		t.KeepAlive = 3 * time.Second
	}
	if t.Receive <= 0 {
		t.Receive = 1 << 30
	}
	return t
}

// window returns the bandwidth-delay product, the bytes on the way that fill the path.
func (t Tuning) window() uint64 {
	return uint64(min(max(float64(t.Rate)*t.RTT.Seconds(), minWindow), maxWindow))
}

// config returns the QUIC configuration.
func (t Tuning) config(streams int64) *quic.Config {
	w := t.window()
	return &quic.Config{
		HandshakeIdleTimeout:           min(5*time.Second, t.Idle),
		MaxIdleTimeout:                 t.Idle,
		KeepAlivePeriod:                t.KeepAlive,
		InitialStreamReceiveWindow:     w,
		MaxStreamReceiveWindow:         w,
		InitialConnectionReceiveWindow: w,
		MaxConnectionReceiveWindow:     w,
		MaxIncomingStreams:             streams,
		MaxIncomingUniStreams:          -1,
		InitialPacketSize:              t.PacketSize,
	}
}

// receiveBudget bounds the sum of the windows of all connections.
type receiveBudget struct {
	limit int64
	used  atomic.Int64
}

// admit counts the window of a connection. false: there is no room for it.
func (b *receiveBudget) admit(window uint64) bool {
	if b.used.Add(int64(window)) > b.limit {
		b.drop(window)
		return false
	}
	return true
}

// drop gives back the window of a connection that has ended.
func (b *receiveBudget) drop(window uint64) { b.used.Add(-int64(window)) }

// clientTLS returns the identity's configuration for dialling cache daemons. With an empty name it
// accepts any certificate with their role. It resumes no sessions, because connections are few and
// last long.
func clientTLS(id *pki.Identity, name string) (*tls.Config, error) {
	c, err := id.Client(name, pki.KVCached)
	if err != nil {
		return nil, err
	}
	c.NextProtos = []string{wire.ALPN}
	c.DynamicRecordSizingDisabled = true
	return c, nil
}
