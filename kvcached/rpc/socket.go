package rpc

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/credentials"

	"github.com/cognitora/dataplane/internal/listen"
)

// process is the peer of a Unix socket.
type process struct {
	credentials.CommonAuthInfo
	listen.Peer
}

// AuthType names the kind of credentials.
func (process) AuthType() string { return "unix" }

// peerCredentials identifies the peer of a Unix socket. It admits root, the daemon's own user and
// members of the file's group, like the lease socket, whatever the file's mode allows.
type peerCredentials struct {
	server *Server
	access listen.Access
}

// errStranger refuses a process by user and groups.
var errStranger = errors.New("rpc: neither its user nor its groups may use this socket, whatever its file's mode allows")

func (pc peerCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	raw := c
	if counted, ok := c.(*counted); ok {
		raw = counted.Conn
	}
	u, ok := raw.(*net.UnixConn)
	if !ok {
		return nil, nil, errors.New("rpc: not a Unix socket")
	}
	control, err := u.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	p, allowed, err := pc.access.Check(control)
	if !allowed {
		pc.server.stats.denied.Add(1)
		pc.server.log.Warn("gRPC socket refused a connection", "uid", p.UID, "gid", p.GID, "pid", p.PID, "error",
			cmp.Or(err, errStranger))
		pc.server.o.Audit.Process(auditedPort, p, cmp.Or(err, errStranger))
		return nil, nil, errors.Join(errStranger, err)
	}
	level := credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
	return c, process{level, p}, nil
}

func (peerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("rpc: these credentials are for servers")
}

func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}

func (c peerCredentials) Clone() credentials.TransportCredentials { return c }

func (peerCredentials) OverrideServerName(string) error { return nil }

// limited closes connections above a number at once.
type limited struct {
	net.Listener
	most  int64
	open  atomic.Int64
	stats *counters
}

// Accept waits for the next connection.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.most {
			l.stats.connections.Add(1)
			return &counted{Conn: c, listener: l}, nil
		}
		l.open.Add(-1)
		l.stats.turnedAway.Add(1)
		c.Close()
	}
}

// counted is a connection that frees its place when it is closed.
type counted struct {
	net.Conn
	listener *limited
	once     sync.Once
}

// Close ends the connection.
func (c *counted) Close() error {
	c.once.Do(func() {
		c.listener.open.Add(-1)
		c.listener.stats.connections.Add(-1)
	})
	return c.Conn.Close()
}
