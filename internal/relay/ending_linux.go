package relay

import (
	"net"
	"sync"
)

// ending is what is left to be done on a goroutine when a stream is over or a
// connection goes back, because it may take locks and a little while.
type ending struct {
	loops   *Loops
	s       *stream  // what has ended; nil: the connection goes back
	top     net.Conn // to be closed, or to go back; nil: it stays where it is
	client  *clientConn
	lending *Lending
	l       *loop // to be told, of the connection of that ticket; may be nil
	ticket  ticket
	do      func() // run, bound once
}

var spareEndings sync.Pool

func newEnding() *ending {
	n, ok := spareEndings.Get().(*ending)
	if !ok {
		n = new(ending)
		n.do = n.run
	}
	return n
}

func (n *ending) run() {
	now := *n
	*n = ending{do: n.do}
	spareEndings.Put(n)
	defer now.loops.busy.Add(-1)
	if now.s == nil {
		now.giveBack()
	} else {
		now.end()
	}
}

// end tells the observer.
func (n *ending) end() {
	defer n.hangUp()
	s := n.s
	s.closeLent()
	observer, outcome, sent, cause := s.observer, s.outcome, s.sent, s.cause
	s.recycle()
	if n.top != nil && outcome == SlowReader {
		n.client.resetOnClose()
	}
	if observer != nil {
		observer.Done(outcome, sent, cause)
	}
}

// hangUp closes the connection, a panic of the observer or not.
func (n *ending) hangUp() {
	if p := recover(); p != nil {
		n.loops.options.Panicked(p)
	}
	if n.top != nil {
		n.top.Close()
	}
	if n.l != nil {
		n.l.post(message{kind: msgSettled, ticket: n.ticket})
	}
}

// giveBack makes the connection an ordinary one and has it served.
func (n *ending) giveBack() {
	c := n.client
	socket, err := c.loan.back()
	if err != nil {
		n.top.Close()
		return
	}
	c.Conn, c.handing = socket, false
	c.reading.forget()
	c.writing.forget()
	if fd, ok := socketOf(socket); ok {
		c.watched.fd = fd
	}
	n.lending.Serve(n.top)
}
