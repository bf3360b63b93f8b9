package netpath

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// reachWithin is how long a door tries to connect to its server. After this time, the door closes
// the client's connection.
const reachWithin = 5 * time.Second

// Door is an address in a namespace that forwards connections to a server outside it, which is in
// this process or its own namespace.
type Door struct {
	Addr netip.AddrPort // in the namespace

	listener net.Listener
	to       string
	cancel   context.CancelFunc // ends attempts to connect to the server
	wait     sync.WaitGroup

	mu     sync.Mutex
	open   map[net.Conn]bool
	closed bool
}

// Door opens a door at an address of the namespace (port 0: a free port). The door forwards to the
// TCP address to outside the namespace. The caller closes the door.
func (s *Side) Door(at netip.AddrPort, to string) (*Door, error) {
	d := &Door{to: to, open: map[net.Conn]bool{}}
	var err error
	s.Do(func() {
		var l *net.TCPListener
		if l, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at)); err == nil {
			d.listener, d.Addr = l, l.Addr().(*net.TCPAddr).AddrPort()
		}
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	d.wait.Go(func() { d.accept(ctx) })
	return d, nil
}

func (d *Door) accept(ctx context.Context) {
	dialer := net.Dialer{Timeout: reachWithin}
	for {
		in, err := d.listener.Accept()
		if err != nil {
			return // the door is closed
		}
		out, err := dialer.DialContext(ctx, "tcp", d.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		if d.keep(in, out) {
			d.wait.Go(func() { d.carry(in, out) })
			d.wait.Go(func() { d.carry(out, in) })
		}
	}
}

// keep records connections for Close. If the door is closed already, keep closes the connections.
func (d *Door) keep(conns ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range conns {
		if d.closed {
			_ = c.Close()
			continue
		}
		d.open[c] = true
	}
	return !d.closed
}

// carry copies in one direction. The end of one direction ends both.
func (d *Door) carry(to, from net.Conn) {
	_, _ = io.Copy(to, from) // ends when either side ends
	for _, c := range []net.Conn{to, from} {
		_ = c.Close()
		d.mu.Lock()
		delete(d.open, c)
		d.mu.Unlock()
	}
}

// Close closes the door and its connections, and waits for its goroutines.
func (d *Door) Close() {
	_ = d.listener.Close()
	d.cancel()
	d.mu.Lock()
	d.closed = true
	for c := range d.open {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.wait.Wait()
}
