package relay

import (
	"net"
	"sync"
	"time"
)

// deadline bounds a connection's reads or its writes. Setting the runtime's deadline costs more
// than a short read or write, and every request sets several. So a runtime's deadline that is
// earlier than the wanted one stays in place. The deadline is corrected only when it has passed. A
// deadline is safe for concurrent use.
type deadline struct {
	writes bool

	mu    sync.Mutex
	due   time.Time // the wanted deadline; zero: none
	force time.Time // the runtime's deadline, never after due; zero: none
}

// set sets the deadline of c to t; zero: none.
func (d *deadline) set(c net.Conn, t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.due = t
	if !d.force.IsZero() && (t.IsZero() || !d.force.After(t)) {
		return nil
	}
	return d.enforce(c)
}

// early reports whether a timeout on c came before the wanted deadline. If so, the caller must
// retry.
func (d *deadline) early(c net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.due.IsZero() && !time.Now().Before(d.due) {
		return false
	}
	return d.enforce(c) == nil
}

// enforce sets the runtime's deadline. The caller holds mu.
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

// forget resets the state when the connection is replaced by another.
func (d *deadline) forget() {
	d.mu.Lock()
	d.due, d.force = time.Time{}, time.Time{}
	d.mu.Unlock()
}
