// Package etcdserver runs a single-member etcd inside this process, for a fleet on one machine and
// for tests.
package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
)

// startTimeout bounds how long Start waits for the member to elect itself.
const startTimeout = 30 * time.Second

// leaveTimeout bounds how long StartContext waits for an unfinished start after its context has
// ended.
const leaveTimeout = 5 * time.Second

// Server is a running etcd member. Close frees the server's ports and its data directory.
type Server struct {
	etcd *embed.Etcd
	errs chan error // at most one error, of the server or of its log; then watch ends
	done chan struct{}
	over sync.WaitGroup
	ends *ends

	mu    sync.Mutex
	calls []*grpc.Server // serve the clients; guarded by mu
}

// Start runs etcd with its data in dir, which is created if absent. listenClient is a loopback or
// other TCP address; port 0 picks a free port (see Endpoint). The member has no peers; its peer
// listener is on a free loopback port. etcd's warnings and errors go to etcd.log in dir. If etcd
// would end the process, Start returns an error instead; the goroutines of this etcd then stay
// until the process ends.
//
// Writes are not fsynced, because they are a fleet's live state, which its agents write again.
func Start(dir, listenClient string) (*Server, error) {
	return StartContext(context.Background(), dir, listenClient)
}

// StartContext is Start, but gives up if ctx ends before the server is ready.
func StartContext(ctx context.Context, dir, listenClient string) (*Server, error) {
	if err := checkFiles(); err != nil {
		return nil, fmt.Errorf("embedded etcd: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("etcd data directory: %w", err)
	}
	s := &Server{errs: make(chan error, 1), done: make(chan struct{}), ends: newEnds()}
	cfg, err := config(dir, listenClient, s.ends)
	if err == nil {
		cfg.ServiceRegister = func(calls *grpc.Server) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.calls = append(s.calls, calls)
		}
		err = s.start(ctx, cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("embedded etcd on %s with data in %s: %w", listenClient, dir, err)
	}
	s.over.Go(s.watch)
	return s, nil
}

// start starts etcd on a goroutine of its own, because etcd never returns after an error that it
// calls fatal.
func (s *Server) start(ctx context.Context, cfg *embed.Config) error {
	up := make(chan error, 1)
	go func() {
		defer func() {
			if met := recover(); met != nil { // etcd panics on damaged data
				up <- fmt.Errorf("its data cannot be read: %v", met)
			}
		}()
		var err error
		s.etcd, err = embed.StartEtcd(cfg)
		if err == nil {
			err = s.awaitReady(ctx)
		}
		up <- err
	}()
	select {
	case err := <-up:
		return err
	case err := <-s.ends.fatal:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-up:
		if err == nil {
			s.etcd.Close()
		}
	case <-s.ends.fatal:
	case <-time.After(leaveTimeout):
	}
	return ctx.Err()
}

// awaitReady waits until the member serves, and closes it if it does not.
func (s *Server) awaitReady(ctx context.Context) (err error) {
	select {
	case <-s.etcd.Server.ReadyNotify():
		return nil
	case err = <-s.etcd.Err():
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(startTimeout):
		err = errors.New("not ready after " + startTimeout.String())
	}
	s.etcd.Close()
	return err
}

// watch passes on an error of the server or its log.
func (s *Server) watch() {
	for {
		select {
		case <-s.done:
			return
		case err := <-s.ends.fatal:
			s.errs <- err
			return
		case err, open := <-s.etcd.Err():
			if !open {
				return
			}
			s.errs <- err
			return
		}
	}
}

func config(dir, listenClient string, e *ends) (*embed.Config, error) {
	log, err := e.logger(filepath.Join(dir, "etcd.log"))
	if err != nil {
		return nil, err
	}
	cfg := embed.NewConfig()
	cfg.Name = "cognitora"
	cfg.Dir = filepath.Join(dir, "member")
	cfg.LogLevel, cfg.ZapLoggerBuilder = "warn", embed.NewZapLoggerBuilder(log)
	client := url.URL{Scheme: "http", Host: listenClient}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	// A single member elects itself. Short timeouts shorten the start, and allow leases of one
	// second.
	cfg.TickMs, cfg.ElectionMs = 50, 500
	cfg.UnsafeNoFsync = true
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModeRevision, "10000"
	cfg.QuotaBackendBytes = 256 << 20
	return cfg, nil
}

// Endpoint returns the address of the client listener, host:port.
func (s *Server) Endpoint() string { return s.etcd.Clients[0].Addr().String() }

// Err returns a channel that yields an error if the server fails while it runs.
func (s *Server) Err() <-chan error { return s.errs }

// Close stops the server and waits until its ports and files are free. After an error that etcd
// calls fatal, ports and files stay in use until the process ends, because etcd's goroutines wait
// for a goroutine that has stopped.
func (s *Server) Close() {
	close(s.done)
	s.over.Wait()
	if s.ends.met() {
		return
	}
	s.cutCalls()
	s.etcd.Close()
}

// cutCalls ends the clients' calls. etcd itself would wait seconds for watches, which never end.
func (s *Server) cutCalls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, calls := range s.calls {
		calls.Stop()
	}
}
