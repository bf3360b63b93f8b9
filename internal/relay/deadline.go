package relay

import (
	"net"
	"sync"
	"time"
)

// deadline bounds a connection's reads, or its writes. Setting the runtime's own
// costs more than a short read or write does, and every request sets several. So
// one that is in force and early is left standing, and looked at again only when
// it has passed. It is safe for concurrent use.
type deadline struct {
	writes bool

	mu    sync.Mutex
	due   time.Time // what was asked for; zero: none
	force time.Time // what the connection knows, never after due; zero: none
}

// set makes t, zero for none, the deadline on c.
func (d *deadline) set(c net.Conn, t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.due = t
	if !d.force.IsZero() && (t.IsZero() || !d.force.After(t)) {
		return nil
	}
	return d.enforce(c)
}

// early reports whether a timeout on c came before it was due: what was tried is to be tried again.
func (d *deadline) early(c net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.due.IsZero() && !time.Now().Before(d.due) {
		return false
	}
	return d.enforce(c) == nil
}

// enforce tells the connection. The caller holds mu.
func (d *deadline) enforce(c net.Conn) error {
	tell := c.SetReadDeadline
	if d.writes {
		tell = c.SetWriteDeadline
	}
	err := tell(d.due)
	if err == nil {
		d.force = d.due
	}
	return err
}

// forget is for another connection in the place of the first.
func (d *deadline) forget() {
	d.mu.Lock()
	d.due, d.force = time.Time{}, time.Time{}
	d.mu.Unlock()
}
