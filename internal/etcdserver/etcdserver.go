// Package etcdserver runs a single-member etcd inside this process, for a fleet on one machine and for tests.
package etcdserver

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// startTimeout bounds how long Start waits for the member to elect itself.
const startTimeout = 30 * time.Second

// Server is a running etcd member. Close it to free its ports and its data directory.
type Server struct {
	etcd *embed.Etcd
}

// Start runs etcd with its data in dir, which is created if absent. listenClient is a loopback or other TCP address;
// port 0 picks a free one (see Endpoint). The member talks to nobody: its peer listener is on a free loopback port.
// etcd's own log goes to etcd.log in dir, warnings and errors only.
//
// Writes are not fsynced: what is stored here is a fleet's live state, which its agents write again.
func Start(dir, listenClient string) (*Server, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("etcd data directory: %w", err)
	}
	etcd, err := embed.StartEtcd(config(dir, listenClient))
	if err != nil {
		return nil, fmt.Errorf("embedded etcd on %s with data in %s: %w", listenClient, dir, err)
	}
	s := &Server{etcd: etcd}
	select {
	case <-etcd.Server.ReadyNotify():
		return s, nil
	case err = <-etcd.Err():
	case <-time.After(startTimeout):
		err = errors.New("not ready after " + startTimeout.String())
	}
	etcd.Close()
	return nil, fmt.Errorf("embedded etcd on %s with data in %s: %w", listenClient, dir, err)
}

func config(dir, listenClient string) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = "cognitora"
	cfg.Dir = filepath.Join(dir, "member")
	cfg.LogLevel = "warn"
	cfg.LogOutputs = []string{filepath.Join(dir, "etcd.log")}
	client := url.URL{Scheme: "http", Host: listenClient}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	// One member elects itself: short timeouts only shorten the start, and allow leases of one second.
	cfg.TickMs, cfg.ElectionMs = 50, 500
	cfg.UnsafeNoFsync = true
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModeRevision, "10000"
	cfg.QuotaBackendBytes = 256 << 20
	return cfg
}

// Endpoint is the address of the client listener, host:port.
func (s *Server) Endpoint() string { return s.etcd.Clients[0].Addr().String() }

// Err yields an error if the server fails while it runs.
func (s *Server) Err() <-chan error { return s.etcd.Err() }

// Close stops the server and waits until it has let go of its ports and files.
func (s *Server) Close() { s.etcd.Close() }
