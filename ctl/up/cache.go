package up

import (
	"fmt"
	"net"
	"path/filepath"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/kvcached"
)

// Ports that the cache of `up` uses if they are free.
const (
	usualRESP    = "127.0.0.1:6380"
	usualS3      = "127.0.0.1:9000"
	usualKVAdmin = "127.0.0.1:9093"
)

const (
	cacheRAM = 256 << 20 // of shared memory, allocated as it is used
	cacheSSD = 512 << 20
)

// cacheAt holds the addresses of the host's cache.
type cacheAt struct {
	RESP string `json:"resp"`
	S3   string `json:"s3"`
	QUIC string `json:"quic,omitempty"`
	Sock string `json:"sock"` // socket for gRPC
	// Admin is the address of /readyz and /metrics.
	Admin string `json:"admin"`
}

// announced returns the address of the cache that nodes announce.
func (c *cacheAt) announced() string { return "unix://" + c.Sock }

// startCache starts the KV cache of this host, for all engines on it.
func (l *local) startCache() error {
	var c kvcached.Config
	if err := config.Defaults(&c); err != nil {
		return err
	}
	dir := filepath.Join(l.dir, "kv")
	c.Daemon.Data, c.Daemon.Sock = dir, filepath.Join(dir, "kv.sock")
	c.Daemon.RAM, c.Daemon.SSD = cacheRAM, cacheSSD
	c.Daemon.Heartbeat, c.Daemon.DrainTimeout = config.Duration(heartbeat), config.Duration(drainRequests)
	c.Etcd.Endpoints, c.GRPC.Announce = []string{l.etcd}, true
	for _, port := range []struct {
		what, usual string
		into        *string
	}{
		{"the KV cache's RESP port", usualRESP, &c.RESP.Listen}, {"the KV cache's S3 port", usualS3, &c.S3.Listen},
		{"the KV cache's admin port", usualKVAdmin, &c.Daemon.Admin},
	} {
		ln, err := reserve("KV cache", port.usual, false)
		if err != nil {
			return err
		}
		*port.into = ln.Addr().String()
		l.noteMoved(port.what, port.usual, ln)
		_ = ln.Close()
	}
	d, err := kvcached.New(c)
	if err != nil {
		return fmt.Errorf("KV cache: %w", err)
	}
	sock, _ := c.Sockets()
	l.cache = &cacheAt{RESP: d.At("resp"), S3: d.At("s3"), QUIC: d.At("quic"), Sock: sock,
		Admin: d.AdminAddr().String()}
	what := fmt.Sprintf("RESP for engines; S3 at http://%s, admin port http://%s, sockets in %s", l.cache.S3,
		d.AdminAddr(), dir)
	l.parts.run(part{Name: "kvcached", Where: "redis://" + l.cache.RESP, What: what}, d.Run)
	return nil
}

// redisLine returns a command that can be pasted.
func (c *cacheAt) redisLine() string {
	host, port, _ := net.SplitHostPort(c.RESP)
	return fmt.Sprintf("redis-cli -h %s -p %s SET greeting hello && redis-cli -h %s -p %s GET greeting", host, port,
		host, port)
}
