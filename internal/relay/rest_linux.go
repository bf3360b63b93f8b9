package relay

import "time"

// Rest hands c, a connection that waits for its next request, to a loop, where
// waiting costs neither a goroutine nor buffers. It is for the Read of c in
// place of waiting any longer: where Rest reports true, Read ends with io.EOF
// and touches c no more, so that the server lets go of it. With the next
// request's first byte c goes back to the server (Lending.Serve); it is closed
// when KeepAlive has passed since idleSince.
func (ln *Lending) Rest(c leased, idleSince time.Time) bool {
	client := clientConnOf(c)
	if ln == nil || ln.Loops == nil || client == nil || client.loan.reserve(client.Conn) != nil {
		return false
	}
	f := newFlow()
	f.l, f.lending, f.idleSince = ln.Loops.pick(), ln, idleSince
	f.client = receiver{top: c, conn: client, fd: client.loan.fd}
	client.watched.rest()
	client.loan.take(client.Conn)
	c.hand()
	f.l.post(message{kind: msgStart, flow: f})
	return true
}
