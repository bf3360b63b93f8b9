package netpath

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/cognitora/dataplane/perf/serve"
)

// reachWithin is how long a door tries to connect to its server. After this time, the door closes
// the client's connection.
const reachWithin = 5 * time.Second

// Door is an address in a namespace that forwards connections to a server outside. The server is in
// this process, or in this process's namespace.
type Door struct {
	Addr netip.AddrPort // in the namespace

	server *serve.Server
	cancel context.CancelFunc // ends attempts to connect to the server
}

// Door opens a door at an address of the namespace (port 0: a free port). The door forwards to the
// TCP address to outside the namespace. The caller closes the door.
func (s *Side) Door(at netip.AddrPort, to string) (*Door, error) {
	var l *net.TCPListener
	var err error
	s.Do(func() { l, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at)) })
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Door{
		Addr:   l.Addr().(*net.TCPAddr).AddrPort(),
		server: serve.Start(l, func(in net.Conn) { forward(ctx, in, to) }),
		cancel: cancel,
	}, nil
}

// forward carries both directions. The end of one direction ends both.
func forward(ctx context.Context, in net.Conn, to string) {
	dialer := net.Dialer{Timeout: reachWithin}
	out, err := dialer.DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(in, out)
		_ = in.Close()
	})
	_, _ = io.Copy(out, in)
	_ = out.Close()
	back.Wait()
}

// Close closes the door and its connections, and waits for its goroutines.
func (d *Door) Close() {
	d.cancel()
	d.server.Close()
}
