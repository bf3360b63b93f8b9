package netpath

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

const (
	soon     = 2 * time.Minute       // long enough for an emulated machine
	patience = 10 * time.Minute      // time limit of one pull
	delay    = 20 * time.Millisecond // in each direction
	loss     = 0.01                  // in each direction
)

var space = block.Namespace{Model: "m", Revision: "1", DType: "bf16", Layout: "test", Tokens: 16, TP: 1, PP: 1}.String()

// hosts are two cache daemons of one fleet, each in a namespace of its own. The daemons' etcd is in
// A's namespace.
type hosts struct {
	*Path
	t   *testing.T
	dir string
	a   *host
	b   *host
}

// host is a running cgn-kvcached.
type host struct {
	pb.KvClient
	id, dir, quic string
	cmd           *exec.Cmd
	ended         chan struct{}
	admin         *http.Client
}

// start makes certificates like an operator, and starts both daemons on a path without delay and
// loss.
func start(t *testing.T) *hosts {
	t.Helper()
	bin := os.Getenv("NETPATH_BIN")
	if bin == "" {
		t.Skip("NETPATH_BIN is not set: make check-net runs this, with the folder of the built programs in it")
	}
	link := bestLink()
	if link == Netem {
		t.Setenv("QUIC_GO_DISABLE_GSO", "true") // netem would delay and lose packets that the kernel segments as one
	}
	h := &hosts{Path: path(t, link, Options{Seed: 1}), t: t, dir: t.TempDir()}
	t.Logf("the path is made by %s", link)
	ends := []string{h.A.Addr.String(), h.B.Addr.String()}
	certificates := exec.Command(filepath.Join(bin, "cgn-ctl"), "pki", "bootstrap", "--dir", h.pki(), "--host",
		ends[0]+","+ends[1], "--role", "kvcached,ctl")
	if out, err := certificates.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	etcd := h.etcd()
	h.a = h.daemon(bin, "a", h.A, etcd)
	h.b = h.daemon(bin, "b", h.B, etcd)
	return h
}

func (h *hosts) pki() string { return filepath.Join(h.dir, "pki") }

// etcd starts etcd in A's namespace, so that B reaches it over the path.
func (h *hosts) etcd() string {
	h.t.Helper()
	s, err := etcdserver.Start(filepath.Join(h.dir, "etcd"), "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(s.Close)
	door, err := h.A.Door(netip.AddrPortFrom(h.A.Addr, 0), s.Endpoint())
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(door.Close)
	return "http://" + door.Addr.String()
}

// daemon starts cgn-kvcached and waits until it is ready. The daemon ends with the test.
func (h *hosts) daemon(bin, id string, at *Side, etcd string) *host {
	h.t.Helper()
	d := &host{id: id, dir: filepath.Join(h.dir, id), quic: at.Addr.String() + ":7072", ended: make(chan struct{})}
	files := pki.FilesIn(h.pki(), pki.KVCached)
	d.cmd = exec.Command(filepath.Join(bin, "cgn-kvcached"), "--data", d.dir, "--ram", "256MiB", "--ssd", "0", "--sock",
		d.at("kv.sock"),
		"--admin", "unix://"+d.at("admin.sock"), "--resp", "unix://"+d.at("resp.sock"), "--quic", d.quic, "--cache-id",
		id, "--etcd", etcd,
		"--tls.ca", files.CA, "--tls.cert", files.Cert, "--tls.key", files.Key, "--quic.rate", "125MB", "--quic.rtt",
		(2 * delay).String())
	if testing.Short() { // on an emulated machine
		d.cmd.Args = append(d.cmd.Args, "--fleet.pull_timeout", patience.String(), "--fleet.locate_timeout", "5s",
			"--fleet.answer_timeout", "5s")
	}
	var log bytes.Buffer
	d.cmd.Stdout, d.cmd.Stderr = &log, &log
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		h.t.Fatal(err)
	}
	if err := at.Start(d.cmd); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		defer close(d.ended)
		_ = d.cmd.Wait() // ProcessState has the result
	}()
	d.admin = &http.Client{Timeout: soon,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dial net.Dialer
			return dial.DialContext(ctx, "unix", d.at("admin.sock"))
		}}}
	conn, err := grpc.NewClient("unix://"+d.at("kv.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		h.t.Fatal(err)
	}
	d.KvClient = pb.NewKvClient(conn)
	h.t.Cleanup(func() {
		d.admin.CloseIdleConnections()
		_ = conn.Close()
		d.stop(h.t)
		if h.t.Failed() {
			h.t.Logf("%s: %v\n%s", id, d.cmd.ProcessState, log.String())
		}
	})
	within(h.t, soon, id+" is ready", func() bool {
		select {
		case <-d.ended:
			h.t.Fatalf("%s ended: %v", id, d.cmd.ProcessState)
		default:
		}
		_, err := d.page("/readyz")
		return err == nil
	})
	return d
}

func (d *host) at(name string) string { return filepath.Join(d.dir, name) }

func (d *host) stop(t *testing.T) {
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // the process may have ended
	select {
	case <-d.ended:
	case <-time.After(soon):
		t.Errorf("%s does not end on SIGTERM", d.id)
		_ = d.cmd.Process.Kill()
		<-d.ended
	}
}

func (d *host) page(path string) (string, error) {
	r, err := d.admin.Get("http://admin" + path)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, r.Status, text)
	}
	return string(text), err
}

// metric returns the sum of the samples of cgn_kvcached_NAME. NAME may end in labels.
func (d *host) metric(t *testing.T, name string) float64 {
	t.Helper()
	text, err := d.page("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	labels := `(?:\{[^}]*\})?`
	if strings.HasSuffix(name, "}") {
		labels = ""
	}
	all := regexp.MustCompile(`(?m)^cgn_kvcached_`+regexp.QuoteMeta(name)+labels+` (\S+)$`).FindAllStringSubmatch(text,
		-1)
	if all == nil {
		t.Fatalf("%s has no metric %s", d.id, name)
	}
	total := 0.0
	for _, m := range all {
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		total += v
	}
	return total
}

// put stores a block of n bytes through gRPC and returns its address and payload.
func (d *host) put(t *testing.T, n int) (block.Addr, []byte) {
	t.Helper()
	payload, a := make([]byte, n), block.Addr{Model: block.IDOf(space)}
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], blocks)
	blocks++
	source := rand.NewChaCha8(seed)
	_, _ = source.Read(payload)
	_, _ = source.Read(a.Digest[:])
	put, err := d.Put(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := &pb.PutRequest{Header: &pb.PutHeader{CheckCrc: true, Block: &pb.BlockHeader{
		Namespace: space, Layer: a.Layer, Digest: a.Digest[:], Length: uint32(n), Crc32C: block.Sum(payload),
	}}}
	for rest := payload; m.Header != nil || len(rest) > 0; m.Header = nil {
		m.Data = rest[:min(len(rest), 1<<20)]
		rest = rest[len(m.Data):]
		if err := put.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := put.CloseAndRecv(); err != nil {
		t.Fatal(err)
	}
	return a, payload
}

var blocks uint64 // number of blocks made by the tests

// get reads a block through gRPC, or returns the error.
func (d *host) get(ctx context.Context, a block.Addr) ([]byte, error) {
	stream, err := d.Get(ctx, &pb.GetRequest{Namespace: space, Layer: a.Layer, Digest: a.Digest[:]})
	if err != nil {
		return nil, err
	}
	var all []byte
	for {
		m, err := stream.Recv()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, m.Data...)
	}
}

// within polls until ok returns true, and returns the time that took.
func within(t *testing.T, bound time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > bound {
			t.Fatalf("not within %v: %s", bound, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(began)
}
