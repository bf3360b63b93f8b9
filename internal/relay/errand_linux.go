package relay

import (
	"net"
	"sync"
)

// errand is work of a loop that may take locks or time. A goroutine does the work.
type errand struct {
	kind   errandKind
	loops  *Loops
	stream *relayedReply // for endStream and bringSource
	flow   *flow         // for bringSource; the flow waits in its loop
	old    *Exchange

	top     net.Conn // connection to give to the server, or to close with its stream; nil: stays in the loop
	client  *clientConn
	parting parting
	parking *Parking
	l       *loop // the loop to tell that the stream on ticket's connection has ended; may be nil
	ticket  ticket

	do func() // run, bound once
}

type errandKind uint8

const (
	endStream   errandKind = iota // close the exchange and tell the follower
	bringSource                   // close the exchange and ask the follower for the next source
	giveBack                      // return the client's connection to the server
)

var errands sync.Pool

func newErrand(kind errandKind, ls *Loops) *errand {
	n, ok := errands.Get().(*errand)
	if !ok {
		n = new(errand)
		n.do = n.run
	}
	n.kind, n.loops = kind, ls
	return n
}

func (n *errand) recycle() {
	*n = errand{do: n.do}
	errands.Put(n)
}

func (n *errand) run() {
	now := *n
	n.recycle()
	switch now.kind {
	case bringSource:
		now.bringSource()
	case giveBack:
		defer now.loops.busy.Add(-1)
		now.giveBack()
	default:
		defer now.loops.busy.Add(-1)
		now.endStream()
	}
}

// endStream closes the exchange and tells the follower that the response has ended.
func (n *errand) endStream() {
	defer n.hangUp()
	s := n.stream
	s.closeParked()
	if n.top != nil && n.parting == resets {
		n.client.resetOnClose()
	}
	s.done()
}

// hangUp closes the connection, even if the follower has panicked.
func (n *errand) hangUp() {
	if p := recover(); p != nil {
		n.loops.o.Panicked(p)
	}
	if n.top != nil {
		n.top.Close()
	}
	if n.l != nil {
		n.l.post(message{kind: msgSettled, ticket: n.ticket})
	}
}

// bringSource closes the exchange of the ended source, and gives the flow the next source.
func (n *errand) bringSource() {
	if n.old != nil {
		n.old.takeBack()
		n.old.Close()
	}
	e, err := n.next()
	if err == nil {
		if err = n.flow.take(e); err != nil {
			e.Close()
			e = nil
		}
	}
	n.flow.l.post(message{kind: msgNext, flow: n.flow, next: e, err: err})
}

// next calls the follower's Next and turns a panic into an error.
func (n *errand) next() (e *Exchange, err error) {
	defer func() {
		if p := recover(); p != nil {
			n.loops.o.Panicked(p)
			e, err = nil, errFollower
		}
	}()
	return nextSource(n.stream.follower)
}

// giveBack makes the parked connection an ordinary one and returns it to the server.
func (n *errand) giveBack() {
	c := n.client
	socket, err := c.parked.back()
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
	n.parking.Serve(n.top)
}
