//go:build !linux

package relay

import "net"

// Nothing is parked on this system.

func (l *parked) take(net.Conn) {}

func (l *parked) back() (net.Conn, error) { return nil, errNoDescriptor }

func (l *parked) end() bool { return false }

func (l *parked) reset() {}
