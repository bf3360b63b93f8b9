package kvabuse

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/client"
	"github.com/cognitora/dataplane/perf/process"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// Numbers of clients in the crowd, and the largest allowed cost of each in the daemon's own memory,
// in bytes.
const (
	crowdRESP, costRESP   = 10_000, 12 << 10
	crowdS3, costS3       = 1000, 48 << 10
	crowdGRPC, costGRPC   = 1000, 64 << 10
	crowdLease, costLease = 1000, 16 << 10

	perChild = 250 // clients of the lease socket in one process, which may have at most 256
)

// childLease makes this program hold clients of the lease socket at this path, until its standard
// input ends.
const childLease = "KVABUSE_LEASE"

func TestMain(m *testing.M) {
	if path := os.Getenv(childLease); path != "" {
		holdLeaseClients(path)
		return
	}
	os.Exit(m.Run())
}

// holdLeaseClients connects perChild clients, and reports when all are connected.
func holdLeaseClients(path string) {
	ctx := context.Background()
	for range perChild {
		c, err := client.Options{Name: "crowd", Sockets: 1}.Dial(ctx, path)
		if err == nil {
			err = c.Ping(ctx)
		}
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
	}
	fmt.Println("held")
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
}

// TestIdleClients connects thousands of clients. Each client sends one request and is then silent.
func TestIdleClients(t *testing.T) {
	files, err := process.RaiseFiles()
	if err != nil || files < crowdRESP+4000 {
		t.Logf("%d files may be open (%v): fewer clients come", files, err)
	}
	d := newDaemon(t, "--ram", "256MiB", "--ssd", "0")
	d.start(t)
	good := newGood(t, d)
	crowd := &crowd{t: t, d: d, was: d.memory(t)}
	defer crowd.leave()
	n := min(crowdRESP, int(files)-2000)
	crowd.grow("RESP clients that have sent PING", n, costRESP, func(int) {
		crowd.dial(d.resp, "PING\r\n", "+PONG\r\n")
	})
	crowd.grow("the same after a GET of 64 KiB each", n, costRESP, crowd.getAgain)
	crowd.grow("S3 clients", crowdS3, costS3, func(int) {
		crowd.dial(d.s3, "HEAD /abuse/none HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 404")
	})
	crowd.grow("gRPC clients", crowdGRPC, costGRPC, crowd.grpc)
	crowd.grow("clients of the lease socket", crowdLease, costLease, crowd.lease)
	among, quiet := good.run(t, 1000)
	t.Logf("a client's GET of 64 KiB and SET of 4 KiB: at a quiet daemon %s, among them all %s", quiet, among)
	crowd.leave()
	eventually(t, "their connections are closed", func() bool { return d.memory(t).files < 100 })
	t.Logf("after they have gone: %s of its own memory, %d files", mib(d.memory(t).anonymous), d.memory(t).files)
}

// crowd connects many clients to a daemon.
type crowd struct {
	t      *testing.T
	d      *daemon
	was    memory // memory before the last clients connected
	mu     sync.Mutex
	conns  []net.Conn
	leaves []func()
}

// grow connects n clients, and logs the cost of each.
func (c *crowd) grow(who string, n int, most int64, come func(i int)) {
	c.t.Helper()
	var all sync.WaitGroup
	const at = 16
	for w := range at {
		all.Go(func() {
			for i := w; i < n && !c.t.Failed(); i += at {
				come(i)
			}
		})
	}
	all.Wait()
	if c.t.Failed() {
		c.t.FailNow()
	}
	is := c.d.memory(c.t)
	each := (is.anonymous - c.was.anonymous) / int64(n)
	c.t.Logf("%d %s: %d bytes each of the daemon's own memory, %d of the system's for sockets (both ends); %s in all",
		n, who, each, (is.sockets-c.was.sockets)/int64(n), mib(is.anonymous))
	if each > most {
		c.t.Errorf("that is more than %d bytes", most)
	}
	c.was = is
	c.d.alive(c.t)
}

// dial sends text over a new connection and reads the beginning of the answer.
func (c *crowd) dial(address, text, answer string) {
	conn, err := net.DialTimeout("tcp", address, soon)
	if err != nil {
		c.t.Error(err)
		return
	}
	c.mu.Lock()
	c.conns = append(c.conns, conn)
	c.mu.Unlock()
	if err := ask(conn, text, answer); err != nil {
		c.t.Error(err)
	}
}

// ask sends text and reads an answer that must begin with answer.
func ask(conn net.Conn, text, answer string) error {
	_ = conn.SetDeadline(time.Now().Add(soon))
	if _, err := conn.Write([]byte(text)); err != nil {
		return err
	}
	b := make([]byte, 512)
	n, err := conn.Read(b)
	if err == nil && (n < len(answer) || string(b[:len(answer)]) != answer) {
		err = fmt.Errorf("%q is answered %q", text, b[:n])
	}
	return err
}

func (c *crowd) getAgain(i int) {
	c.mu.Lock()
	conn := c.conns[i]
	c.mu.Unlock()
	r := &respWay{conn, bufio.NewReader(conn)}
	if _, err := r.do([]byte("GET"), []byte(goodKey)); err != nil {
		c.t.Error(err)
	}
}

func (c *crowd) grpc(int) {
	conn, err := grpc.NewClient("unix://"+c.d.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		c.t.Error(err)
		return
	}
	c.mu.Lock()
	c.leaves = append(c.leaves, func() { _ = conn.Close() })
	c.mu.Unlock()
	a := block.Addr{Digest: block.Digest{9}, Model: space.ID()}
	if _, err := pb.NewKvClient(conn).Lookup(c.t.Context(), &pb.LookupRequest{Namespace: space.String(),
		Digest: a.Digest[:]}); err != nil {
		c.t.Error(err)
	}
}

// lease starts one process for perChild clients.
func (c *crowd) lease(i int) {
	if i%perChild != 0 {
		return
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childLease+"="+c.d.lease)
	in, err := cmd.StdinPipe()
	if err != nil {
		c.t.Error(err)
		return
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		c.t.Error(err)
		return
	}
	c.mu.Lock()
	c.leaves = append(c.leaves, func() { _ = in.Close(); _ = cmd.Wait() })
	c.mu.Unlock()
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		c.t.Errorf("a process with %d clients: %s", perChild, line)
	}
}

func (c *crowd) leave() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	for _, f := range c.leaves {
		f()
	}
	c.conns, c.leaves = nil, nil
}

// good is a well-behaved client whose requests are timed.
type good struct {
	*respWay
	quiet      *respWay // connected to a daemon without other clients
	key, other []byte
	value      []byte
}

const goodKey = "good"

func newGood(t *testing.T, d *daemon) *good {
	t.Helper()
	quiet := newDaemon(t, "--ram", "64MiB", "--ssd", "0")
	quiet.start(t)
	g := &good{key: []byte(goodKey), other: []byte("other"), value: makePayload(block.Digest{1}, 1, 64<<10)}
	dial := func(d *daemon) *respWay {
		r, err := dialRESP(d.resp)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.conn.Close() })
		if _, err := r.do([]byte("SET"), g.key, g.value); err != nil {
			t.Fatal(err)
		}
		return r
	}
	g.respWay, g.quiet = dial(d), dial(quiet)
	return g
}

// latency is the time of a GET and a SET together.
type latency struct{ p50, p99, most time.Duration }

func (l latency) String() string {
	return fmt.Sprintf("p50 %s, p99 %s, at most %s", l.p50.Round(time.Microsecond), l.p99.Round(time.Microsecond),
		l.most.Round(time.Microsecond))
}

// run gets and sets n times at both daemons in turn. A miss or a refusal fails the test.
func (g *good) run(t *testing.T, n int) (among, quiet latency) {
	t.Helper()
	var all [2][]time.Duration
	for i := range n {
		for at, r := range []*respWay{g.respWay, g.quiet} {
			began := time.Now()
			b, err := r.do([]byte("GET"), g.key)
			if err == nil {
				_, err = checkPayload(block.Digest{1}, b)
			}
			if err == nil {
				_, err = r.do([]byte("SET"), strconv.AppendInt(g.other[:5:5], int64(i%100), 10), g.value[:4096])
			}
			if err != nil {
				t.Fatalf("a client that behaves, at its %d. of %d: %v", i, n, err)
			}
			all[at] = append(all[at], time.Since(began))
		}
	}
	of := func(took []time.Duration) latency {
		slices.Sort(took)
		return latency{took[n/2], took[n*99/100], took[n-1]}
	}
	return of(all[0]), of(all[1])
}
