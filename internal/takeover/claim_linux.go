package takeover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sync"
	"syscall"

	"github.com/cognitora/dataplane/internal/listen"
)

// Claim holds the sockets of a running process in the process that will replace it. The user of a
// Claim must call Close.
type Claim struct {
	PID     int    // id of the running process
	Version string // version of the running program
	Auth    string // how the running process asks clients who they are; empty: it did not say

	conn    *net.UnixConn
	sockets []Socket // a nil Listener was taken
	taken   []Socket
	gone    chan struct{}
	reading sync.WaitGroup
	closing sync.Once
}

// Ask gets the sockets that the process at path offers. Ask returns ErrNobody if nobody listens at
// path, and another error if that process does not send them.
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
	// a process that refuses immediately has sent its reason and closed, so a failed send is not
	// final
	sendErr := send(c.conn, message{Kind: kindHello}, nil)
	m, fds, err := receive(c.conn)
	if err != nil {
		return fmt.Errorf("it does not answer: %w", errors.Join(sendErr, err))
	}
	defer func() { listen.CloseAll(fds) }()
	switch {
	case m.Kind == kindRefused:
		return fmt.Errorf("it refuses: %s", m.Reason)
	case m.Protocol != Protocol:
		return mismatch(m)
	case m.Kind != kindOffer || len(fds) != len(m.Sockets):
		return fmt.Errorf("it answers %s with %d descriptors for %d sockets", m.Kind, len(fds), len(m.Sockets))
	}
	c.PID, c.Version, c.Auth = m.PID, m.Version, m.Auth
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

// mismatch returns the error for a program with another protocol.
func mismatch(m message) error {
	return fmt.Errorf("version %.64q hands over by protocol %d, this one by %d; restart it instead", m.Version,
		m.Protocol, Protocol)
}

// watch closes gone when the running process has ended.
func (c *Claim) watch() {
	defer close(c.gone)
	for {
		_, fds, err := receive(c.conn)
		listen.CloseAll(fds)
		if err != nil {
			return
		}
	}
}

// Take returns the listener for this setting and address, which the caller then owns. The
// listener's Close does not remove the file of a Unix socket. Take returns nil if the setting is
// not offered, or has another address.
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

// Gone returns a channel that is closed when the running process has ended, or after Close.
func (c *Claim) Gone() <-chan struct{} { return c.gone }

// Serving tells the running process, if it still exists, that this process accepts connections.
// From now on this process alone owns the taken sockets, including the files of Unix sockets.
// Nobody may be closing these listeners meanwhile.
func (c *Claim) Serving() {
	m := message{Kind: kindServing}
	for _, s := range c.taken {
		unlink(s.Listener, true)
		m.Sockets = append(m.Sockets, resource{s.Setting, s.Address})
	}
	_ = send(c.conn, m, nil) // on failure the process has ended
	c.Close()
}

// Close closes the sockets that were not taken. Close before Serving also gives up the claim, and
// the running process goes on.
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
