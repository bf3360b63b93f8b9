//go:build linux && cgo && rdma

package verbs

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/rdma"
)

// asPerftest is the timeout of all retries, so that a lost packet costs as much as with perftest:
// 67 ms.
const asPerftest = 500 * time.Millisecond

// TestSpeedOfTwoHosts prints how fast the second of two hosts reads memory of the first one, beside
// perftest's results. The test is part of make perf-rdma.
func TestSpeedOfTwoHosts(t *testing.T) {
	switch os.Getenv("VM_HOST") {
	case "1":
		ownsMemory(t)
	case "2":
		reads(t)
	default:
		t.Skip("VM_HOST is not set: make perf-rdma runs this in two virtual machines")
	}
}

// ownsMemory is the first host's part. The first host also runs perftest's servers, one at a time.
func ownsMemory(t *testing.T) {
	l, err := net.Listen("tcp", os.Getenv("VM_SELF")+":7000")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := opened(t)
	mem := registeredIn(t, d, 8<<20)
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(2 * time.Minute))
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	k := newTalk(t, c)
	p := paired(t, d, rdma.PairOptions{Timeout: asPerftest, MaxReads: 128})
	if err := p.Connect(k.receive().End); err != nil {
		t.Fatal(err)
	}
	k.send(letter{End: p.Local(), Key: granted(t, p, mem)[0].Key()})
	for {
		words := strings.Fields(k.receive().Serve)
		if len(words) == 0 {
			return
		}
		server := exec.CommandContext(within(t), words[0], words[1:]...)
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		k.send(letter{})
		_ = server.Wait()
		k.send(letter{})
	}
}

// reads is the second host's part.
func reads(t *testing.T) {
	d := opened(t)
	into := registeredIn(t, d, 8<<20)
	k, p, l := meetWith(t, d, rdma.PairOptions{Timeout: asPerftest, MaxReads: 128})
	theirs := func(program string, column int, args ...string) float64 {
		args = append([]string{"-d", d.name, "-x", strconv.Itoa(d.gid.index), "-F"}, args...)
		k.send(letter{Serve: program + " " + strings.Join(args, " ")})
		k.receive()
		defer k.receive()
		return client(t, os.Getenv("VM_PEER"), column, program, args...)
	}
	heading(t, "from another machine")
	for _, size := range []int{1 << 20, 8 << 20} {
		n := max(8, 32<<20/size) // perftest needs at least 5
		args := []string{"-s", strconv.Itoa(size), "-n", strconv.Itoa(n)}
		row(t, fmt.Sprintf("READ of %d MiB, one pair, MiB/s", size>>20), func() float64 {
			return bandwidth(t, p, rdma.Read{Into: into[:size], From: l.Key}, n)
		},
			func() float64 { return theirs("ib_read_bw", 3, append(args, "-e")...) }, func() float64 {
				return theirs("ib_read_bw", 3, args...)
			})
	}
	args := []string{"-s", "64", "-n", strconv.Itoa(speedReads)}
	row(t, "READ of 64 B, µs, median", func() float64 { return latency(t, p, rdma.Read{Into: into[:64], From: l.Key}) },
		func() float64 { return theirs("ib_read_lat", 4, append(args, "-e")...) }, func() float64 {
			return theirs("ib_read_lat", 4, args...)
		})
	k.send(letter{})
}
