//go:build linux && cgo && rdma

package verbs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/awake"
	"github.com/cognitora/dataplane/rdma"
)

const (
	hostsSize = 16 << 20
	// patience is the timeout for an emulated machine on a busy host. impatience is the timeout for
	// the pair whose cable is pulled. outage is how long the cable is out.
	patience, impatience, outage = 10 * time.Second, time.Second, 20 * time.Second
)

// letter is a message between the two hosts. The hosts alternate.
type letter struct {
	End   rdma.Endpoint
	Key   rdma.Key
	Sum   [32]byte // of the window's bytes
	Pull  bool     // the cable is pulled next
	Serve string   // program that the owner is to run next, with its arguments
	CPU   float64  // CPU seconds that the owner has used since the previous letter
	Runs  int64    // times that the owner's threads got a CPU since the previous letter
}

// talk is the connection between the two hosts.
type talk struct {
	t    *testing.T
	c    net.Conn
	in   *json.Decoder
	out  *json.Encoder
	last syscall.Rusage
}

func newTalk(t *testing.T, c net.Conn) *talk {
	t.Cleanup(func() { c.Close() })
	return &talk{t: t, c: c, in: json.NewDecoder(c), out: json.NewEncoder(c)}
}

func (k *talk) send(l letter) {
	k.t.Helper()
	if err := k.out.Encode(l); err != nil {
		k.t.Fatal(err)
	}
}

func (k *talk) receive() (l letter) {
	k.t.Helper()
	_ = k.c.SetReadDeadline(time.Now().Add(2 * time.Minute))
	if err := k.in.Decode(&l); err != nil {
		k.t.Fatal(err)
	}
	return l
}

// spent returns this process's usage since the previous call.
func (k *talk) spent() (seconds float64, runs int64) {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	span := func(now, then syscall.Timeval) float64 { return float64(now.Nano()-then.Nano()) / 1e9 }
	seconds = span(u.Utime, k.last.Utime) + span(u.Stime, k.last.Stime)
	runs = u.Nvcsw + u.Nivcsw - k.last.Nvcsw - k.last.Nivcsw
	k.last = u
	return seconds, runs
}

// TestTwoHosts runs on both machines of a pair. The first machine owns the memory, and the second
// machine reads it.
func TestTwoHosts(t *testing.T) {
	switch os.Getenv("VM_HOST") {
	case "1":
		owner(t)
	case "2":
		reader(t)
	default:
		t.Skip("VM_HOST is not set: make check-rdma runs this in two virtual machines")
	}
}

// owner serves three connections. The cable is pulled during the second connection.
func owner(t *testing.T) {
	l, err := net.Listen("tcp", os.Getenv("VM_SELF")+":7000")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for round := range 3 {
		d := opened(t)
		mem := registeredIn(t, d, hostsSize)
		fill(mem, uint64(round))
		_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(2 * time.Minute))
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		k := newTalk(t, c)
		p := paired(t, d, rdma.PairOptions{Timeout: patience})
		if err := p.Connect(k.receive().End); err != nil {
			t.Fatal(err)
		}
		k.send(letter{End: p.Local(), Key: granted(t, p, mem)[0].Key(), Sum: sha256.Sum256(mem)})
		k.spent()
		k.receive()
		cpu, runs := k.spent()
		k.send(letter{CPU: cpu, Runs: runs})
		if k.receive().Pull {
			fmt.Println("@@ cable off") // perf/vm/vm.sh pulls the cable at this line
			goes(t, d)
			<-time.After(outage)
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			fmt.Println("@@ cable on")
			plugged(t, d.name)
		}
	}
}

// plugged waits until the card's port is up again.
func plugged(t *testing.T, card string) {
	t.Helper()
	for ctx := within(t); ; {
		state, err := os.ReadFile("/sys/class/infiniband/" + card + "/ports/1/state")
		if strings.Contains(string(state), "ACTIVE") {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("the cable is back, and the port is %q: %v", state, err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// meet connects to the owner. meet retries, because the owner may not listen yet, or may be
// unreachable.
func meet(t *testing.T, d *device, timeout time.Duration) (*talk, *pair, letter) {
	t.Helper()
	return meetWith(t, d, rdma.PairOptions{Timeout: timeout})
}

func meetWith(t *testing.T, d *device, o rdma.PairOptions) (*talk, *pair, letter) {
	t.Helper()
	for ctx := within(t); ; {
		c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", os.Getenv("VM_PEER")+":7000")
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		if err != nil {
			continue
		}
		k := newTalk(t, c)
		p := paired(t, d, o)
		k.send(letter{End: p.Local()})
		l := k.receive()
		if err := p.Connect(l.End); err != nil {
			t.Fatal(err)
		}
		return k, p, l
	}
}

func reader(t *testing.T) {
	d := opened(t)
	into := registeredIn(t, d, hostsSize)
	k, p, l := meet(t, d, patience)
	began := time.Now()
	whole(t, p, into, l)
	took := time.Since(began)
	k.send(letter{})
	used := k.receive()
	t.Logf("%d MiB/s; the owner used %.0f ms of CPU in %v, and its threads ran %d times",
		int(hostsSize>>20/took.Seconds()), used.CPU*1e3, took, used.Runs)
	if used.CPU > took.Seconds()/4 {
		t.Errorf("the owner used %.3f s of CPU in %v, while its card was read", used.CPU, took)
	}
	for _, c := range []struct{ at, length int }{{63, 64}, {4095, 4097}, {3, 8<<20 + 1}} {
		part := into[:c.length]
		want := bytes.Clone(into[c.at : c.at+c.length])
		if err := p.Read(within(t), []rdma.Read{{Into: part, From: l.Key, Skip: uint64(c.at)}}); err != nil ||
			!bytes.Equal(part, want) {
			t.Fatalf("%d bytes at %d: %v", c.length, c.at, err)
		}
		whole(t, p, into, l)
	}
	k.send(letter{})
	k, p, l = meet(t, d, impatience)
	k.send(letter{})
	k.receive()
	pulled(t, k, p, into, l)
	k, p, l = meet(t, d, patience)
	whole(t, p, into, l)
	k.send(letter{})
	k.receive()
	k.send(letter{})
}

// whole reads the whole window, and compares it with the owner's checksum.
func whole(t *testing.T, p *pair, into []byte, l letter) {
	t.Helper()
	if err := p.Read(within(t), []rdma.Read{{Into: into, From: l.Key}}); err != nil {
		t.Fatal(err)
	}
	if sha256.Sum256(into) != l.Sum {
		t.Fatal("what was read is not what the owner has")
	}
}

// pulled reads while the cable is pulled, which happens once the first bytes have come.
func pulled(t *testing.T, k *talk, p *pair, into []byte, l letter) {
	t.Helper()
	var reads atomic.Int64
	ended := make(chan error, 1)
	clear(into)
	go func() { ended <- loop(p, into, l.Key, &reads) }()
	begins(t, into)
	k.send(letter{Pull: true})
	began, since := time.Now(), awake.Clock()
	k.spent()
	select {
	case err := <-ended:
		cpu, runs := k.spent()
		if took := since(); took >= outage {
			t.Errorf("reads from a host that is cut off end when it is back, after %v in which the machine ran", took)
		}
		if !errors.Is(err, rdma.ErrUnreachable) || strings.Contains(err.Error(), "flushed") {
			t.Errorf("reads from a host that is cut off end with %v", err)
		}
		if took := time.Since(began); cpu > took.Seconds()/2 {
			t.Errorf("%.3f s of CPU in %v, while reads waited", cpu, took)
		}
		came := len(into) - bytes.Count(into, []byte{0})
		t.Logf("cut off: told after %v, %d reads and about %d of %d bytes of the first or next, of 1 s from the last "+
			"packet, with %.0f ms of CPU, in which threads ran %d times: %v", time.Since(began), reads.Load(), came,
			len(into), cpu*1e3, runs, err)
	case <-time.After(outage + time.Minute):
		since()
		t.Error("reads from a host that is cut off do not end")
		p.Close()
		<-ended
	}
	if err := p.Read(context.Background(), []rdma.Read{{Into: into, From: l.Key}}); !errors.Is(err, rdma.ErrBroken) {
		t.Errorf("a read after that: %v", err)
	}
}
