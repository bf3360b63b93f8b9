package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

func load(t *testing.T, dir string, role Role) *Identity {
	t.Helper()
	id, err := Load(FilesIn(dir, role))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// dial connects both configurations over a real socket, and sends one byte in each direction. In
// TLS 1.3 the server's refusal shows only then.
func dial(t *testing.T, server, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	served := make(chan error, 1)
	go func() {
		c, err := ln.Accept()
		if err == nil {
			defer c.Close()
			s := tls.Server(c, server)
			if _, err = io.CopyN(s, s, 1); err == nil {
				err = s.CloseWrite()
			}
		}
		served <- err
	}()
	defer func() { <-served }()
	raw, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(time.Minute))
	c := tls.Client(raw, client)
	if _, err := c.Write([]byte{1}); err != nil {
		return tls.ConnectionState{}, err
	}
	if _, err := io.ReadAll(c); err != nil {
		return tls.ConnectionState{}, err
	}
	return c.ConnectionState(), nil
}

func mustClient(t *testing.T, id *Identity, name string, roles ...Role) *tls.Config {
	t.Helper()
	c, err := id.Client(name, roles...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestHandshakeByRole(t *testing.T) {
	dir, other := bootstrap(t, Options{}), bootstrap(t, Options{})
	agent := load(t, dir, Agent)
	server := agent.Server(true, Router, Ctl)
	router := load(t, dir, Router)
	for _, c := range []struct {
		name   string
		client *tls.Config
		want   string // part of the error; "" means accepted
	}{
		{"router by address", mustClient(t, router, "127.0.0.1"), ""},
		{"router by name", mustClient(t, router, "localhost", Agent), ""},
		{"router by role only", mustClient(t, router, "", Agent), ""},
		{"ctl", mustClient(t, load(t, dir, Ctl), "127.0.0.1"), ""},
		{"agent", mustClient(t, agent, "127.0.0.1"), "bad certificate"},
		{"wrong name", mustClient(t, router, "elsewhere"), "not elsewhere"},
		{"wrong address", mustClient(t, router, "127.0.0.9"), "127.0.0.9"},
		{"server of another role", mustClient(t, router, "", Etcd), "wrong role"},
		{"foreign CA", mustClient(t, load(t, other, Router), "127.0.0.1"), "unknown authority"},
		{"no certificate", &tls.Config{InsecureSkipVerify: true}, "certificate required"},
		{"foreign certificate", &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{load(t, other, Router).current().pair}}, "unknown certificate authority"},
		{"TLS 1.2", &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}, "protocol version"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cs, err := dial(t, server, c.client)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want == "" && cs.Version != tls.VersionTLS13:
				t.Errorf("version %x", cs.Version)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestServerWithoutClientCertificates(t *testing.T) {
	dir := bootstrap(t, Options{})
	server := load(t, dir, Agent).Server(false)
	client := &tls.Config{RootCAs: load(t, dir, Ctl).current().roots, ServerName: "localhost"}
	if _, err := dial(t, server, client); err != nil {
		t.Error(err)
	}
	caAlone := Files{CA: FilesIn(dir, Router).CA}
	if c, err := ClientConfig(caAlone, "", Agent); err != nil {
		t.Error(err)
	} else if _, err := dial(t, server, c); err != nil {
		t.Errorf("with the CA alone: %v", err)
	} else if _, err := dial(t, load(t, dir, Agent).Server(true, Router), c); err == nil {
		t.Error("a server that asks for a certificate took a client without one")
	}
	foreign, err := ClientConfig(Files{CA: FilesIn(bootstrap(t, Options{}), Router).CA}, "", Agent)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, server, foreign); err == nil {
		t.Error("a server of another CA was taken")
	}
}

// TestAsking checks which certificates a port sees whose clients need none.
func TestAsking(t *testing.T) {
	dir := bootstrap(t, Options{})
	server := load(t, dir, Router).Asking()
	for _, role := range Roles() {
		if _, err := dial(t, server, mustClient(t, load(t, dir, role), "localhost")); err != nil {
			t.Errorf("the role %s: %v", role, err)
		}
	}
	none, err := ClientConfig(Files{CA: FilesIn(dir, Router).CA}, "localhost")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, server, none); err != nil {
		t.Errorf("without a certificate: %v", err)
	}
	stranger := mustClient(t, load(t, bootstrap(t, Options{}), Ctl), "localhost")
	stranger.VerifyConnection = nil
	if _, err := dial(t, server, stranger); err == nil {
		t.Error("a certificate of another CA was taken")
	}
	if role, shown := RoleIn(nil); role != "" || shown {
		t.Error("plain HTTP has a role")
	}
	leaf := load(t, dir, Ctl).current().pair.Leaf
	unverified := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	if role, shown := RoleIn(unverified); role != "" || shown {
		t.Error("a certificate that was not verified has a role")
	}
}

// TestMonitorIsForAdminPorts checks that the role monitor is refused wherever any role would do.
func TestMonitorIsForAdminPorts(t *testing.T) {
	dir := bootstrap(t, Options{})
	client := mustClient(t, load(t, dir, Monitor), "localhost")
	for name, server := range map[string]*tls.Config{
		"Server": load(t, dir, Router).Server(true), "Mutual": load(t, dir, Router).Mutual("http/1.1"),
		"ServerOptional": load(t, dir, Router).ServerOptional(),
	} {
		if _, err := dial(t, server, client); err == nil {
			t.Errorf("%s takes the role monitor", name)
		}
	}
}

func TestMutual(t *testing.T) {
	dir := bootstrap(t, Options{})
	server := load(t, dir, KVCached).Mutual("cgn-kv/1")
	client := mustClient(t, load(t, dir, Ctl), "", KVCached)
	client.NextProtos = []string{"h2", "cgn-kv/1"}
	if state, err := dial(t, server, client); err != nil || state.NegotiatedProtocol != "cgn-kv/1" {
		t.Errorf("%q, %v", state.NegotiatedProtocol, err)
	}
	first, err := server.GetConfigForClient(nil)
	if again, _ := server.GetConfigForClient(nil); err != nil || again != first {
		t.Errorf("configurations %p and %p, %v", first, again, err)
	}
	client.NextProtos = []string{"http/1.1"}
	if _, err := dial(t, server, client); err == nil {
		t.Error("another protocol is spoken")
	}
	if _, err := dial(t, server, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"cgn-kv/1"}}); err == nil {
		t.Error("a client without a certificate is let in")
	}
}

func TestClientNeedsSomethingToCheck(t *testing.T) {
	if _, err := ClientConfig(FilesIn(bootstrap(t, Options{}), Router), ""); err == nil {
		t.Error("accepted")
	}
}

// TestEndedCertificates: nobody begins with a certificate that has ended, or takes it, or one that
// is not valid yet, in place of another.
func TestEndedCertificates(t *testing.T) {
	ended := Options{Roles: []Role{Agent}, Now: time.Now().Add(-2 * time.Hour), Lifetime: time.Hour, Force: true}
	early := Options{Roles: []Role{Agent}, Now: time.Now().Add(24 * time.Hour), Lifetime: time.Hour, Force: true}
	f := FilesIn(bootstrap(t, ended), Agent)
	if _, err := Load(f); err == nil || !strings.Contains(err.Error(), f.Cert+" has ended") {
		t.Error(err)
	}
	dir := bootstrap(t, Options{})
	id, c := load(t, dir, Agent), &clock{t: time.Now()}
	id.setClock(c)
	first := serial(id)
	for i, o := range []Options{ended, early} {
		if err := Bootstrap(dir, o); err != nil {
			t.Fatal(err)
		}
		c.advance(CheckEvery)
		if serial(id) != first || id.Failures() != int64(i+1) {
			t.Errorf("%d: a certificate that is not valid was taken; %d failures", i, id.Failures())
		}
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	dir := bootstrap(t, Options{})
	f := FilesIn(dir, Agent)
	for _, name := range []string{f.CA, f.Cert, f.Key} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(f); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s empty: %v", name, err)
		}
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// clock is a time that the test sets.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func (id *Identity) setClock(c *clock) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.now, id.checked = c.now, c.now()
}
func serial(id *Identity) string { return id.current().pair.Leaf.SerialNumber.String() }

func TestReloadFollowsFiles(t *testing.T) {
	dir := bootstrap(t, Options{})
	id, c := load(t, dir, Agent), &clock{t: time.Now()}
	id.setClock(c)
	server, router := id.Server(true, Router), load(t, dir, Router)
	first := serial(id)
	if err := Bootstrap(dir, Options{Roles: []Role{Agent}, Force: true}); err != nil {
		t.Fatal(err)
	}
	if serial(id) != first {
		t.Error("looked at the files before CheckEvery had passed")
	}
	c.advance(CheckEvery)
	cs, err := dial(t, server, mustClient(t, router, "localhost"))
	if err != nil {
		t.Fatal(err)
	}
	if got := cs.PeerCertificates[0].SerialNumber.String(); got == first || got != serial(id) {
		t.Error("the handshake used the old certificate")
	}
}

func TestReloadFollowsTheCA(t *testing.T) {
	dir, other := bootstrap(t, Options{}), bootstrap(t, Options{})
	id, c := load(t, dir, Router), &clock{t: time.Now()}
	id.setClock(c)
	client, outside := mustClient(t, id, "localhost"), id.Outside("127.0.0.1")
	server := load(t, other, Agent).Server(false)
	for _, c := range []*tls.Config{client, outside} {
		if _, err := dial(t, server, c); err == nil {
			t.Fatal("a foreign server was accepted")
		}
	}
	both := append(readFile(t, FilesIn(dir, Router).CA), readFile(t, FilesIn(other, Router).CA)...)
	if err := os.WriteFile(FilesIn(dir, Router).CA, both, 0o600); err != nil {
		t.Fatal(err)
	}
	c.advance(CheckEvery)
	for _, c := range []*tls.Config{client, outside} {
		if _, err := dial(t, server, c); err != nil {
			t.Errorf("after the CA was added: %v", err)
		}
	}
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBadReloadKeepsTheOldPair(t *testing.T) {
	dir := bootstrap(t, Options{})
	id, c := load(t, dir, Agent), &clock{t: time.Now()}
	id.setClock(c)
	first, f := serial(id), FilesIn(dir, Agent)
	key := readFile(t, f.Key)
	if err := os.WriteFile(f.Key, readFile(t, FilesIn(dir, Ctl).Key), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		c.advance(CheckEvery)
		if serial(id) != first {
			t.Fatal("a mismatched pair was taken")
		}
	}
	if got := id.Failures(); got != 1 {
		t.Errorf("%d failures counted, want 1 for one change", got)
	}
	if err := os.WriteFile(f.Key, key, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Bootstrap(dir, Options{Roles: []Role{Agent}, Force: true}); err != nil {
		t.Fatal(err)
	}
	c.advance(CheckEvery)
	if serial(id) == first || id.NotAfter().IsZero() {
		t.Error("a good pair after a bad one was not taken")
	}
}

// TestIdleWires: an identity follows its files without a handshake too. If the files are damaged
// when the next handshake comes, it shows the certificate from before the damage and no older one.
func TestIdleWires(t *testing.T) {
	t.Parallel()
	dir := bootstrap(t, Options{})
	id := load(t, dir, Router)
	old := id.state.Load()
	if err := Bootstrap(dir, Options{Force: true}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); id.state.Load() == old; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the files are not read")
		}
	}
	want, err := tls.LoadX509KeyPair(FilesIn(dir, Router).Cert, FilesIn(dir, Router).Key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(FilesIn(dir, Router).Cert, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(CheckEvery)
	if got := id.current().pair.Leaf; !got.Equal(want.Leaf) {
		t.Errorf("certificate %v, not %v", got.SerialNumber, want.Leaf.SerialNumber)
	}
}

func TestRoleError(t *testing.T) {
	dir := bootstrap(t, Options{})
	_, err := dial(t, load(t, dir, Router).Server(false), mustClient(t, load(t, dir, Router), "", Agent))
	if !errors.Is(err, ErrRole) {
		t.Errorf("got %v", err)
	}
}

func TestOutsideChecksTheName(t *testing.T) {
	dir := bootstrap(t, Options{})
	server := load(t, dir, Etcd).Server(true)
	id := load(t, dir, Agent)
	for name, want := range map[string]bool{"localhost": true, "127.0.0.1": true, "elsewhere": false,
		"127.0.0.9": false} {
		if _, err := dial(t, server, id.Outside(name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	alone, err := Load(Files{CA: FilesIn(dir, Agent).CA})
	if err != nil || alone.Outside("localhost").GetClientCertificate != nil {
		t.Errorf("without a certificate of its own: %v", err)
	}
	system, err := Load(Files{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, load(t, dir, Etcd).Server(false), system.Outside("localhost")); err == nil ||
		!strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("with the system's CAs: %v", err)
	}
	for _, f := range []Files{{CA: "missing"}, {Cert: "missing", Key: "missing"}} {
		if _, err := Load(f); err == nil {
			t.Errorf("%+v accepted", f)
		}
	}
}
