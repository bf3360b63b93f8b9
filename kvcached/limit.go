package kvcached

import (
	"net"
	"sync"
)

// limited accepts a connection only while fewer than cap(slots) are open. Further connections wait
// in the kernel's queue.
type limited struct {
	net.Listener
	slots  chan struct{}
	closed chan struct{}
	once   sync.Once
}

func limit(l net.Listener, connections int) *limited {
	return &limited{Listener: l, slots: make(chan struct{}, connections), closed: make(chan struct{})}
}

// Accept waits for a slot, then for a connection.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &counted{Conn: c, slots: l.slots}, nil
}

// Close also ends an Accept that waits for a slot.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type counted struct {
	net.Conn
	slots chan struct{}
	once  sync.Once
}

// Close frees the connection's slot.
func (c *counted) Close() error {
	c.once.Do(func() { <-c.slots })
	return c.Conn.Close()
}
