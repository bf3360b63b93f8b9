package takeover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sync"
	"syscall"
)

// Claim is the sockets of a running process, in the hands of the one that is to replace it. Close
// it in the end.
type Claim struct {
	PID     int    // of the running process
	Version string // of its program

	conn    *net.UnixConn
	sockets []Socket // Listener nil: taken
	taken   []Socket
	gone    chan struct{}
	reading sync.WaitGroup
	closing sync.Once
}

// Ask has the process that offers its sockets at path send them. The error is ErrNobody where
// nobody listens there, and else says why it did not.
func Ask(ctx context.Context, path string) (*Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w at %s", ErrNobody, path)
	}
	if err != nil {
		return nil, err
	}
	claim := &Claim{conn: c.(*net.UnixConn), gone: make(chan struct{})}
	if err := claim.ask(ctx); err != nil {
		claim.conn.Close()
		claim.drop()
		return nil, fmt.Errorf("the process at %s: %w", path, err)
	}
	claim.reading.Go(claim.watch)
	return claim, nil
}

func (c *Claim) ask(ctx context.Context) error {
	if _, err := sameUser(c.conn); err != nil {
		return err
	}
	if end, ok := ctx.Deadline(); ok {
		c.conn.SetDeadline(end)
	}
	sendErr := send(c.conn, message{Kind: kindHello}, nil) // who has refused at once has closed, and said why
	m, fds, err := receive(c.conn)
	if err != nil {
		return fmt.Errorf("it does not answer: %w", errors.Join(sendErr, err))
	}
	defer func() { closeAll(fds) }()
	switch {
	case m.Kind == kindRefused:
		return fmt.Errorf("it refuses: %s", m.Reason)
	case m.Protocol != Protocol:
		return mismatch(m)
	case m.Kind != kindOffer || len(fds) != len(m.Sockets):
		return fmt.Errorf("it answers %s with %d descriptors for %d sockets", m.Kind, len(fds), len(m.Sockets))
	}
	c.PID, c.Version = m.PID, m.Version
	for _, s := range m.Sockets {
		fd := fds[0]
		fds = fds[1:]
		l, err := listenerOf(fd, s.Setting)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Setting, err)
		}
		c.sockets = append(c.sockets, Socket{s.Setting, s.Address, l})
	}
	return c.conn.SetDeadline(noDeadline)
}

// mismatch is the error of two programs that cannot understand each other.
func mismatch(m message) error {
	return fmt.Errorf("version %.64q hands over by protocol %d, this one by %d; restart it instead", m.Version,
		m.Protocol, Protocol)
}

// watch notices the end of the running process.
func (c *Claim) watch() {
	defer close(c.gone)
	for {
		_, fds, err := receive(c.conn)
		closeAll(fds)
		if err != nil {
			return
		}
	}
}

// Take is the listener of that setting, whose Close leaves the file of a Unix socket; nil where it
// is not offered, or at another address. It is the caller's then.
func (c *Claim) Take(setting, address string) net.Listener {
	for i := range c.sockets {
		s := &c.sockets[i]
		if l := s.Listener; l != nil && s.Setting == setting && s.Address == address {
			c.taken = append(c.taken, *s)
			s.Listener = nil
			return l
		}
	}
	return nil
}

// Gone is closed when the running process has ended, or Close was called.
func (c *Claim) Gone() <-chan struct{} { return c.gone }

// Serving tells the running process, if it is still there, that this one accepts connections. What
// was taken is this process's alone from now on, files of Unix sockets included. Nobody may be
// closing those listeners meanwhile.
func (c *Claim) Serving() {
	m := message{Kind: kindServing}
	for _, s := range c.taken {
		unlink(s.Listener, true)
		m.Sockets = append(m.Sockets, resource{s.Setting, s.Address})
	}
	_ = send(c.conn, m, nil) // it has ended otherwise
	c.Close()
}

// Close gives up what was not taken, and before Serving the claim itself: the running process goes
// on.
func (c *Claim) Close() {
	c.closing.Do(func() {
		c.conn.Close()
		c.drop()
		c.reading.Wait()
	})
}

func (c *Claim) drop() {
	for i := range c.sockets {
		if l := c.sockets[i].Listener; l != nil {
			l.Close()
			c.sockets[i].Listener = nil
		}
	}
}
