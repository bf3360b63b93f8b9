package transport

import (
	"crypto/tls"
	"sync"
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
	// Receive bounds the bytes that all peers together may make this side buffer; 0: 1 GiB. All
	// peers with their stripes have room in it. Connections beyond it are refused.
	Receive int64
}

// MaxHosts is the largest number of hosts in a fleet. A Pool has as many peers, and a Server is
// connected to as many hosts.
const MaxHosts = 1024

// Bounds of the largest window of one connection in bytes.
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

// window returns the bandwidth-delay product, the bytes on the way that fill the path. A
// connection's window grows to it.
func (t Tuning) window() uint64 {
	return uint64(min(max(float64(t.Rate)*t.RTT.Seconds(), minWindow), maxWindow))
}

// config returns the QUIC configuration.
func (t Tuning) config(streams int64, b *receiveBudget) *quic.Config {
	w := t.window()
	return &quic.Config{
		HandshakeIdleTimeout:           min(5*time.Second, t.Idle),
		MaxIdleTimeout:                 t.Idle,
		KeepAlivePeriod:                t.KeepAlive,
		InitialStreamReceiveWindow:     w,
		MaxStreamReceiveWindow:         w,
		InitialConnectionReceiveWindow: b.first,
		MaxConnectionReceiveWindow:     w,
		AllowConnectionWindowIncrease:  b.grow,
		MaxIncomingStreams:             streams,
		MaxIncomingUniStreams:          -1,
		InitialPacketSize:              t.PacketSize,
	}
}

// receiveBudget bounds the sum of the windows of all connections. A window starts small, so that
// the fleet's largest number of connections has room. It grows with the connection's throughput,
// while all windows together take no more than half of the limit.
type receiveBudget struct {
	limit int64
	first uint64 // first window of a connection in bytes

	mu      sync.Mutex
	used    int64
	windows map[*quic.Conn]int64
}

// newReceiveBudget returns a budget with room for the given number of connections.
func newReceiveBudget(t Tuning, connections int) *receiveBudget {
	return &receiveBudget{limit: t.Receive, first: min(t.window(), uint64(t.Receive/2)/uint64(connections)),
		windows: map[*quic.Conn]int64{}}
}

// admit counts the first window of a connection. false: there is no room for it.
func (b *receiveBudget) admit(c *quic.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+int64(b.first) > b.limit {
		return false
	}
	b.used += int64(b.first)
	b.windows[c] = int64(b.first)
	return true
}

// grow counts more bytes of a connection's window. false: the window stays as it is.
func (b *receiveBudget) grow(c *quic.Conn, more uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, admitted := b.windows[c]; !admitted || b.used+int64(more) > b.limit/2 {
		return false
	}
	b.used += int64(more)
	b.windows[c] += int64(more)
	return true
}

// drop gives back the window of a connection that has ended.
func (b *receiveBudget) drop(c *quic.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= b.windows[c]
	delete(b.windows, c)
}

// sum returns the bytes of all windows.
func (b *receiveBudget) sum() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// clientTLS returns the identity's configuration for dialling cache daemons. It accepts any
// certificate with their role if name is empty. It resumes no sessions, because connections are few
// and last long.
func clientTLS(id *pki.Identity, name string) (*tls.Config, error) {
	c, err := id.Client(name, pki.KVCached)
	if err != nil {
		return nil, err
	}
	c.NextProtos = []string{wire.ALPN}
	c.DynamicRecordSizingDisabled = true
	return c, nil
}
