package kvcached

import (
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quic-go/quic-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/adminport/adminporttest"
	"github.com/cognitora/dataplane/internal/audit/audittest"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// audited starts a daemon with certificates, users and keys, and an audit log.
func audited(t *testing.T, certificates, name string) (*Daemon, func() error) {
	own := pki.FilesIn(certificates, pki.KVCached)
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("hidden-word\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _ := settings(t, t.TempDir(), func(c *Config) {
		c.TLS = TLSConfig{CA: own.CA, Cert: own.Cert, Key: own.Key}
		c.AdminTLS = adminport.TLS{Cert: own.Cert, Key: own.Key, ClientCA: own.CA}
		c.RESP.Users = []UserConfig{
			{Name: "default", PasswordFile: password, Tenant: "acme"},
			{Name: "reader", PasswordFile: password, ReadOnly: true},
		}
		c.S3.Keys = []KeyConfig{{Access: "AKIA1", SecretFile: password, Tenant: "acme"}}
		c.Audit.Log, c.Audit.Refusals = name, 100
	})
	return begin(t, c)
}

// TestAuditedActs checks that each call that removes blocks for all, or operates the daemon, has a
// line, also over a rotation of the file.
func TestAuditedActs(t *testing.T) {
	dir, name := t.TempDir(), filepath.Join(t.TempDir(), "audit.log")
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	d, stop := audited(t, dir, name)
	audittest.Act(t, name, "start, version ")
	if got := redis(t, d.At("resp"), "AUTH hidden-word", "SET a 1", "FLUSHDB"); got[2] != "+OK" {
		t.Fatalf("%q", got)
	}
	audittest.Await(t, name, "FLUSHDB", func(l audittest.Line) bool {
		return l.Action == "flushdb" && strings.Contains(l.Object, "acme") && l.By == "default" && l.Outcome == "ok"
	})
	if _, err := kv(t, d).Purge(t.Context(), &pb.PurgeRequest{Tenant: "acme"}); err != nil {
		t.Fatal(err)
	}
	audittest.Await(t, name, "Purge of a process", func(l audittest.Line) bool {
		return l.Action == "Purge" && l.Object == "tenant=acme" && strings.HasPrefix(l.By, "pid ") && l.Outcome == "ok"
	})
	if err := os.Rename(name, name+".1"); err != nil {
		t.Fatal(err)
	}
	if err := d.ReopenLogs(); err != nil {
		t.Fatal(err)
	}
	ctl := calling(t, d, dir, pki.Ctl)
	_, _ = ctl.Delete(t.Context(), &pb.DeleteRequest{Namespace: testSpace.String(), Digests: make([]byte, 64)})
	audittest.Await(t, name, "Delete by ctl", func(l audittest.Line) bool {
		return l.Action == "Delete" && strings.HasSuffix(l.Object, " blocks=2") &&
			l.By == "certificate spiffe://cognitora/role/ctl" && l.Client != ""
	})
	_, _ = ctl.ReleaseDevice(t.Context(), &pb.ReleaseDeviceRequest{Device: "mlx5_0"})
	audittest.Act(t, name, "ReleaseDevice, device=mlx5_0, ")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	audittest.Act(t, name, "stop, , ok")
}

// calling returns a client of the gRPC port that shows the certificate of a role of the fleet in
// dir; "": none.
func calling(t *testing.T, d *Daemon, dir string, role pki.Role) pb.KvClient {
	t.Helper()
	conn, err := grpc.NewClient(d.At("grpc"),
		grpc.WithTransportCredentials(credentials.NewTLS(audittest.Showing(t, dir, role, "h2"))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return pb.NewKvClient(conn)
}

// TestAuditedRefusals checks that refused identities at each port have lines, and no line a secret.
func TestAuditedRefusals(t *testing.T) {
	dir, other, name := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "audit.log")
	for _, at := range []string{dir, other} {
		if err := pki.Bootstrap(at, pki.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	d, _ := audited(t, dir, name)
	redis(t, d.At("resp"), "GET a", "AUTH stolen-word", "AUTH nobody-there hidden-word", "AUTH reader hidden-word",
		"SET a 1")
	for _, want := range []string{"no_password", "wrong_password default", "wrong_password", "not_permitted reader"} {
		audittest.Refusal(t, name, "resp "+want)
	}
	for _, header := range []string{"", "AWS4-HMAC-SHA256 Credential=STRANGER/20260101/us-east-1/s3/aws4_request, " +
		"SignedHeaders=host, Signature=" + strings.Repeat("0", 64)} {
		for _, h := range []string{header, strings.Replace(header, "STRANGER", "AKIA1", 1)} {
			req, _ := http.NewRequest(http.MethodGet, "http://"+d.At("s3")+"/bucket/key", nil)
			req.Header.Set("Authorization", h)
			req.Header.Set("x-amz-date", "20260101T000000Z")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
	}
	for _, want := range []string{"AccessDenied", "InvalidAccessKeyId", "RequestTimeTooSkewed AKIA1"} {
		audittest.Refusal(t, name, "s3 "+want)
	}
	_, _ = calling(t, d, other, pki.Ctl).Stats(t.Context(), &pb.StatsRequest{})
	audittest.Refusal(t, name, "grpc client_certificate")
	_, _ = calling(t, d, dir, pki.Router).Purge(t.Context(), &pb.PurgeRequest{Everything: true})
	audittest.Refusal(t, name, "grpc role_denied certificate spiffe://cognitora/role/router")
	refusedLanes(t, d, name, dir, other)
	adminporttest.Readers(t, d.AdminAddr().String(), dir)
	audittest.Refusal(t, name, "admin admin_403")
	page, _ := os.ReadFile(name)
	for _, secret := range []string{"hidden-word", "stolen-word", "nobody-there", "STRANGER", "0000000000"} {
		if strings.Contains(string(page), secret) {
			t.Errorf("the audit log has %q", secret)
		}
	}
}

// refusedLanes asks both lanes between caches with the certificate of another fleet, and with a
// role that may only read.
func refusedLanes(t *testing.T, d *Daemon, name, dir, other string) {
	stranger := audittest.Showing(t, other, pki.KVCached, wire.ALPN)
	if conn, err := quic.DialAddr(t.Context(), d.At("quic"), stranger, nil); err == nil {
		<-conn.Context().Done() // the server's alert
	}
	audittest.Refusal(t, name, "quic client_certificate")
	refusals := len(audittest.Lines(t, name))
	liar, err := quic.DialAddr(t.Context(), d.At("quic"), audittest.Showing(t, dir, pki.Ctl, wire.ALPN), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = liar.CloseWithError(0, "tls: client didn't provide a certificate")
	defer func() {
		for _, l := range audittest.Lines(t, name)[refusals:] {
			if l.Port == "quic" {
				t.Errorf("a client's own words: %+v", l)
			}
		}
	}()
	if conn, err := tls.Dial("tcp", d.At("tls-lane"), stranger); err == nil {
		_, _ = conn.Read(make([]byte, 1)) // the server's alert
		conn.Close()
	}
	audittest.Refusal(t, name, "tls-lane client_certificate")
	id, err := pki.Load(pki.FilesIn(dir, pki.Router))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := transport.NewPool(transport.PoolOptions{Identity: id})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	peer, err := pool.Peer(transport.Target{Address: d.At("quic"), Lane: transport.QUIC})
	if err != nil {
		t.Fatal(err)
	}
	if err := peer.Delete(t.Context(), []block.Addr{testAddr(1)}, make([]bool, 1)); err == nil {
		t.Error("a router may delete")
	}
	audittest.Refusal(t, name, "peers role_denied certificate spiffe://cognitora/role/router")
}
