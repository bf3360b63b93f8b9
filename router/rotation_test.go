package router_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/router"
)

// TestCertificatesChangeUnderLoad replaces the certificates of router and agents, and their CA,
// while clients send requests. No connection and no request is lost. New connections on every wire
// use the new certificates: those of clients, and those to agents and to a backend.
func TestCertificatesChangeUnderLoad(t *testing.T) {
	t.Parallel()
	dir, next := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, next} {
		if err := pki.Bootstrap(d, pki.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	s, agents := serveTLS(t, dir)
	old, err := tls.LoadX509KeyPair(filepath.Join(dir, "router.crt"), filepath.Join(dir, "router.key"))
	if err != nil {
		t.Fatal(err)
	}
	load := s.keepAsking(4, dir)
	stream := s.openStream(dir)

	both := slices.Concat(file(t, dir, "ca.crt"), file(t, next, "ca.crt"))
	replace(t, dir, map[string][]byte{"ca.crt": both})
	time.Sleep(pki.CheckEvery) // an operator also waits until every program trusts the new CA
	pairs := map[string][]byte{}
	for _, name := range []string{"router.crt", "router.key", "agent.crt", "agent.key"} {
		pairs[name] = file(t, next, name)
	}
	replace(t, dir, pairs)
	time.Sleep(pki.CheckEvery)
	replace(t, dir, map[string][]byte{"ca.crt": file(t, next, "ca.crt")})
	time.Sleep(pki.CheckEvery)

	for _, at := range append(agents, s.url) {
		shows(t, at, next)
	}
	for _, at := range agents {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(at, "https://"), &tls.Config{InsecureSkipVerify: true,
			Certificates: []tls.Certificate{old}})
		if err == nil {
			_, err = conn.Read(make([]byte, 1)) // with TLS 1.3 the refusal comes here
			_ = conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s takes the old certificate: %v", at, err)
		}
	}
	m := s.metrics()
	if end, bad := m.sum("cgn_router_tls_certificate_end_seconds"), m.sum("cgn_router_tls_reload_failures_total"); end <
		float64(time.Now().Unix()) || bad != 0 {
		t.Errorf("the certificate ends at %v, %v failures", end, bad)
	}
	fresh := &site{t: t, url: s.url, client: clientOf(t, next, 0, nil)} // trusts the new CA alone
	defer fresh.client.CloseIdleConnections()
	all := together(32, func(int) *reply { return fresh.chat(chatBody("again", streaming)) })
	mustAll(t, "after the change", all)
	nodes := map[string]bool{}
	for _, r := range all {
		nodes[r.node()] = true
	}
	if len(nodes) != 2 {
		t.Errorf("answered by %v", nodes)
	}
	stream()
	load()
}

// serveTLS runs a router with a serving port in TLS, in front of two agents that demand
// certificates: one is announced in etcd, the other is a backend.
func serveTLS(t *testing.T, dir string) (s *site, agents []string) {
	t.Helper()
	etcd, engines := startEtcd(t).endpoint, simulate(t, 2)
	for i, id := range []string{"announced", "configured"} {
		c, err := agentConfig(id, engines[i].URL(), etcd)
		if err != nil {
			t.Fatal(err)
		}
		f := pki.FilesIn(dir, pki.Agent)
		c.TLS = agent.TLSConfig{CA: f.CA, Cert: f.Cert, Key: f.Key}
		if id == "configured" {
			c.Etcd.Endpoints = nil
		}
		agents = append(agents, startAgent(t, c).Nodes()[0].Address)
	}
	s = serve(t, nil, func(c *router.Config) {
		f := pki.FilesIn(dir, pki.Router)
		c.Router.Mode = "round_robin"
		c.Etcd.Endpoints = []string{etcd}
		c.TLS = router.TLSConfig{Cert: f.Cert, Key: f.Key}
		c.Upstream = router.UpstreamTLS{CA: f.CA, Cert: f.Cert, Key: f.Key}
		c.Router.Backends = []string{fmt.Sprintf("%s,id=configured,ca=%s,cert=%s,cert_key=%s", agents[1], f.CA, f.Cert,
			f.Key)}
	})
	s.url = "https" + strings.TrimPrefix(s.url, "http")
	eventually(t, "both nodes are eligible", func() bool { return s.eligible() == 2 })
	return s, agents
}

// clientOf returns a client that trusts the CA in dir. The client has at most this many
// connections, unless 0, and counts them in dials.
func clientOf(t *testing.T, dir string, connections int, dials *atomic.Int64) *http.Client {
	t.Helper()
	roots, err := pki.Roots(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, MaxConnsPerHost: connections,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dials != nil {
				dials.Add(1)
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	}}
}

// keepAsking lets n clients send requests, each over one connection. end stops them, and reports
// each failure and each further connection.
func (s *site) keepAsking(n int, dir string) (end func()) {
	ctx, stop := context.WithCancel(s.t.Context())
	var all sync.WaitGroup
	var sent atomic.Int64
	for range n {
		var dials atomic.Int64
		one := &site{t: s.t, url: s.url, client: clientOf(s.t, dir, 1, &dials)}
		all.Go(func() {
			defer one.client.CloseIdleConnections()
			for ctx.Err() == nil {
				if r := one.chat(chatBody("load", streaming)); r.status != 200 || r.err != nil || r.attempts() != "1" {
					s.t.Error(r)
				}
				sent.Add(1)
			}
			if dials.Load() != 1 {
				s.t.Errorf("a client needed %d connections", dials.Load())
			}
		})
	}
	return func() {
		stop()
		all.Wait()
		s.t.Log(sent.Load(), "requests")
	}
}

// openStream begins a stream without an end. still reads on, which fails if the stream has ended,
// and leaves.
func (s *site) openStream(dir string) (still func()) {
	ctx, leave := context.WithCancel(s.t.Context())
	one := &site{t: s.t, url: s.url, client: clientOf(s.t, dir, 1, nil)}
	resp, err := one.send(ctx, http.MethodPost, "/v1/chat/completions", chatBody("long",
		`,"stream":true,"max_tokens":100000`))
	if err != nil {
		s.t.Fatal(err)
	}
	var lines atomic.Int64
	read := make(chan struct{})
	go func() {
		defer close(read)
		for scan := bufio.NewScanner(resp.Body); scan.Scan(); {
			lines.Add(1)
		}
	}()
	return func() {
		seen := lines.Load()
		eventually(s.t, "the stream goes on", func() bool { return lines.Load() > seen })
		leave()
		<-read
		_ = resp.Body.Close()
		one.client.CloseIdleConnections()
	}
}

// shows fails the test unless the server at url shows the certificate of its role in dir.
func shows(t *testing.T, url, dir string) {
	t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Errorf("%s: %v", url, err)
		return
	}
	defer conn.Close()
	shown := conn.ConnectionState().PeerCertificates[0]
	f := pki.FilesIn(dir, pki.RoleOf(shown))
	want, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil || !shown.Equal(want.Leaf) {
		t.Errorf("%s shows another certificate than %s (%v)", url, f.Cert, err)
	}
}

func file(t *testing.T, dir, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// replace gives files in dir another content, each in one step.
func replace(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name, text := range files {
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(at+".new", at); err != nil {
			t.Fatal(err)
		}
	}
}
