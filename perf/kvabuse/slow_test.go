package kvabuse

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cognitora/dataplane/kv/block"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// slowClients is how many clients of a kind are slow at a time. slowGrowth bounds the growth of the
// daemon's own memory by them, in bytes.
const (
	slowClients = 64
	slowGrowth  = 64 << 20
)

// largeSubject returns a block that all protocols can use.
func largeSubject(i int) *subject {
	s := makeSubjects(2)[i]
	return s
}

// storeLarge stores a block of n bytes.
func storeLarge(t *testing.T, d *daemon, n int) *subject {
	t.Helper()
	w := d.connect(t)
	defer w.close()
	s := largeSubject(0)
	if err := w.by["resp"].put(t.Context(), s, makePayload(s.name, 1, n), putOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}

// open dials n connections, and sends text on each without reading anything.
func open(t *testing.T, address string, n int, text []byte) (conns []net.Conn) {
	t.Helper()
	for range n {
		c, err := net.DialTimeout("tcp", address, soon)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.(*net.TCPConn).SetReadBuffer(64 << 10)
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = c.Write(text) // the daemon need not read the whole text
		conns = append(conns, c)
	}
	return conns
}

// behave runs a well-behaved client among slow ones. Each of its requests must be answered, and the
// daemon's memory must stay within its bound. The time of the requests is only logged, because it
// depends on the machine too.
func behave(t *testing.T, d *daemon, g *good, who string, was memory) {
	t.Helper()
	l, quiet := g.run(t, 500)
	is, m := d.memory(t), d.metrics(t)
	t.Logf("%s: a client that behaves: %s, at a quiet daemon: %s; own memory %s more, %s of the arena held",
		who, l, quiet, mib(is.anonymous-was.anonymous), mib(int64(m["ram_held_bytes"])))
	if is.anonymous-was.anonymous > slowGrowth {
		t.Errorf("%s: the daemon's memory grew by more than %s", who, mib(slowGrowth))
	}
}

// TestSlowReaders requests 4 MiB many times by every protocol, and reads none of it.
func TestSlowReaders(t *testing.T) {
	d := newDaemon(t, "--ram", "256MiB", "--ssd", "0", "--resp.stall", "4s", "--s3.timeout", "4s")
	d.start(t)
	g := newGood(t, d)
	s := storeLarge(t, d, 4<<20)
	was := d.memory(t)
	get := bytes.Repeat(fmt.Appendf(nil, "GET %s\r\n", s.key), 8)
	open(t, d.resp, slowClients, get)
	behave(t, d, g, "64 slow readers of RESP", was)
	open(t, d.s3, slowClients, []byte("GET /abuse/"+s.key+" HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	behave(t, d, g, "and 64 of S3", was)
	conn, err := grpc.NewClient("unix://"+d.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range slowClients {
		if _, err := pb.NewKvClient(conn).Get(t.Context(), &pb.GetRequest{Namespace: s.namespace, Layer: s.addr.Layer,
			Digest: s.addr.Digest[:]}); err != nil {
			t.Fatal(err)
		}
	}
	behave(t, d, g, "and 64 of gRPC", was)
	eventually(t, "RESP's slow readers are cut", func() bool {
		return d.metrics(t)["resp_stalled_total"] >= slowClients
	})
	eventually(t, "S3's slow readers are cut", func() bool {
		return d.metrics(t)["s3_connections"] == 0 || d.memory(t).files < 2*slowClients
	})
	if _, err := g.do([]byte("DEL"), []byte(s.key)); err != nil {
		t.Error(err)
	}
	t.Logf("after that: own memory %s more than before, %.0f stalled", mib(d.memory(t).anonymous-was.anonymous),
		d.metrics(t)["resp_stalled_total"])
}

// TestUnreadPipelines sends a million PINGs on each of several connections and reads no answer.
func TestUnreadPipelines(t *testing.T) {
	d := newDaemon(t, "--ram", "64MiB", "--ssd", "0", "--resp.stall", "3s")
	d.start(t)
	g := newGood(t, d)
	was := d.memory(t)
	var all sync.WaitGroup
	const clients, pings = 8, 1_000_000
	text := bytes.Repeat([]byte("*1\r\n$4\r\nPING\r\n"), pings)
	for range clients {
		c, err := net.DialTimeout("tcp", d.resp, soon)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all.Go(func() { _, _ = c.Write(text) }) // ends when the daemon closes
	}
	behave(t, d, g, "8 clients with a million PINGs each, no answer read", was)
	all.Wait()
	behave(t, d, g, "after they have been cut", was)
}

// TestSlowWriters begins to write more than the arena can hold, by every protocol, and stops in the
// middle.
func TestSlowWriters(t *testing.T) {
	d := newDaemon(t, "--ram", "512MiB", "--ssd", "0", "--resp.stall", "6s", "--s3.timeout", "6s")
	d.start(t)
	g := newGood(t, d)
	const size = 64 << 20
	part := make([]byte, 256<<10)
	kept := keep(t, d, 96)
	for _, kind := range []struct {
		who  string
		open func()
	}{
		{"64 clients that stop in a SET of 64 MiB", func() {
			open(t, d.resp, slowClients, append(fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$4\r\nslow\r\n$%d\r\n", size),
				part...))
		}},
		{"and 600 that stop in a SET of 1 MiB", func() {
			open(t, d.resp, 600, append([]byte("*3\r\n$3\r\nSET\r\n$4\r\nslow\r\n$1048576\r\n"), part[:4096]...))
		}},
		{"and 64 that stop in a PUT of 64 MiB", func() {
			open(t, d.s3, slowClients,
				append(fmt.Appendf(nil, "PUT /abuse/slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n",
					size), part...))
		}},
		{"and 64 that stop in a Put over gRPC", func() { stopInPut(t, d, size, part) }},
	} {
		was := d.memory(t)
		kind.open()
		behave(t, d, g, kind.who, was)
		for _, s := range kept {
			if _, err := g.get(t.Context(), s); err != nil {
				t.Fatalf("%s: what is read has been pushed out: %v", kind.who, err)
			}
		}
	}
	eventually(t, "RESP and S3 clients that have stopped are cut", func() bool { return d.memory(t).files < 60 })
	behave(t, d, g, "after they have been cut", d.memory(t))
}

// keep stores n blocks of 1 MiB.
func keep(t *testing.T, d *daemon, n int) []*subject {
	t.Helper()
	w := d.connect(t)
	defer w.close()
	all := makeSubjects(4 * n)[:n]
	for _, s := range all {
		s.key = "keep-" + s.key[:min(len(s.key), 20)] + string(s.name[:4])
		if err := w.by["resp"].put(t.Context(), s, makePayload(s.name, 1, 1<<20), putOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// stopInPut begins slowClients calls of Put and stops in the middle of each. The calls end with the
// test.
func stopInPut(t *testing.T, d *daemon, size uint32, part []byte) {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+d.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	for i := range slowClients {
		stream, err := pb.NewKvClient(conn).Put(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a := block.Digest{7, byte(i)}
		m := &pb.PutRequest{Data: part,
			Header: &pb.PutHeader{Block: &pb.BlockHeader{Namespace: space.String(), Digest: a[:], Length: size}}}
		if err := stream.Send(m); err != nil && err != io.EOF {
			t.Fatal(err)
		}
	}
}

// TestStopUnderLoad stops the daemon while clients are in the middle of all kinds of requests. Only
// drain_timeout ends stopped clients. So a client that waits behind them never gets an answer.
func TestStopUnderLoad(t *testing.T) {
	d := newDaemon(t, "--ram", "256MiB", "--ssd", "256MiB",
		"--drain-timeout", "3s", "--resp.stall", "1h", "--s3.timeout", "1h")
	d.start(t)
	g := newGood(t, d)
	s, was := storeLarge(t, d, 4<<20), d.memory(t)
	open(t, d.resp, 8, bytes.Repeat(fmt.Appendf(nil, "GET %s\r\n", s.key), 8))
	open(t, d.resp, 8, []byte("*3\r\n$3\r\nSET\r\n$4\r\nslow\r\n$1000000\r\nbegun"))
	open(t, d.s3, 8, []byte("GET /abuse/"+s.key+" HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	stopInPut(t, d, 256<<10, make([]byte, 1<<10))
	behave(t, d, g, "slow clients that are never cut", was)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 4 {
		w := d.connect(t)
		all.Go(func() {
			defer w.close()
			s := largeSubject(i % 2)
			for ctx.Err() == nil {
				for _, by := range s.ways {
					_ = w.by[by].put(ctx, s, makePayload(s.name, 1, 1<<20), putOptions{durable: true})
					_, _ = w.by[by].get(ctx, s)
				}
			}
		})
	}
	eventually(t, "there is load", func() bool { return d.metrics(t)["ssd_durable_total"] > 20 })
	began := time.Now()
	d.signal(15)
	eventually(t, "the daemon has ended", func() bool { _, err := d.process.Usage(); return err != nil })
	took := time.Since(began)
	cancel()
	all.Wait()
	t.Logf("it ended %.1f s after SIGTERM: %v", took.Seconds(), d.process.Explain(fmt.Errorf("log")))
}
