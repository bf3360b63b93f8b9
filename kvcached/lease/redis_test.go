//go:build linux

package lease_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/redisserver"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/client"
)

const (
	targetGet1 = 1.0 / 5  // of redis
	targetGet8 = 1.0 / 20 // of redis
	targetPut  = 2.5      // of a memcpy and two bare round trips
	pairs      = 31
)

// TestAgainstRedis compares this server with redis over a Unix socket and with bare sockets. The
// measurements are interleaved, and each server is a process of its own. The test prints medians,
// and ratios with their 95 % intervals. It fails only if a whole interval is beyond the target.
func TestAgainstRedis(t *testing.T) {
	if os.Getenv("CGN_BENCH") == "" {
		t.Skip("set CGN_BENCH=1: takes half a minute and wants a quiet machine")
	}
	path := child(t, "serve")
	echo := dial(t, child(t, "echo"))
	redis := startRedis(t)
	c, err := client.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	for _, mib := range []int{1, 8} {
		size := mib << 20
		target := map[int]float64{1: targetGet1, 8: targetGet8}[mib]
		payload := pattern(size, 1)
		redis.set(t, "k", payload)
		a := put(t, c, fmt.Sprint("get", mib), payload)
		view, err := c.Get(t.Context(), a)
		if err != nil || view.Verify() != nil {
			t.Fatal("first touch", err)
		}
		view.Close()
		rounds := 400 / mib
		compare(t, fmt.Sprintf("Get of %d MiB by lease / redis GET", mib), target,
			measure(rounds, func() { get(t, c, a, nil) }), measure(rounds, func() { redis.get(t, "k", size) }))
		sink := make([]byte, size)
		compare(t, fmt.Sprintf("Get of %d MiB by lease and copying it / redis GET", mib), math.Inf(1),
			measure(rounds, func() { get(t, c, a, sink) }), measure(rounds, func() { redis.get(t, "k", size) }))
	}

	payload, to := pattern(1<<20, 2), make([]byte, 1<<20)
	it := item("put")
	if _, err := c.Put(t.Context(), it, payload); err != nil {
		t.Fatal(err)
	}
	doPut := func() {
		if _, err := c.Put(t.Context(), it, payload); err != nil {
			t.Fatal(err)
		}
	}
	bare := func() {
		copy(to, payload)
		echo()
		echo()
	}
	compare(t, "Put of 1 MiB / memcpy and two bare round trips", targetPut, measure(300, doPut), measure(300, bare))
	compare(t, "PutFrom of 1 MiB that is there already / the same", math.Inf(1), measure(300, func() {
		if _, err := c.PutFrom(t.Context(), it, len(payload), func([]byte) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}), measure(300, bare))
	compare(t, "Put of 1 MiB / redis SET", math.Inf(1), measure(300, doPut),
		measure(300, func() { redis.set(t, "s", payload) }))
	a := it.Addr
	compare(t, "Get by lease / bare round trip", math.Inf(1), measure(1000, func() { get(t, c, a, nil) }),
		measure(1000, echo))
}

func get(t *testing.T, c *client.Client, a block.Addr, sink []byte) {
	v, err := c.Get(context.Background(), a)
	if err == nil {
		copy(sink, v.Bytes())
		err = v.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// measure returns a function that calls do rounds times and returns the time of one call.
func measure(rounds int, do func()) func() float64 {
	return func() float64 {
		began := time.Now()
		for range rounds {
			do()
		}
		return float64(time.Since(began)) / float64(rounds)
	}
}

// compare measures ours and theirs in pairs. The order within a pair alternates.
func compare(t *testing.T, what string, target float64, ours, theirs func() float64) {
	t.Helper()
	var a, b, ratios []float64
	for i := range pairs + 1 {
		var x, y float64
		if i%2 == 0 {
			x, y = ours(), theirs()
		} else {
			y, x = theirs(), ours()
		}
		if i > 0 { // the first warms up
			a, b, ratios = append(a, x), append(b, y), append(ratios, x/y)
		}
	}
	slices.Sort(a)
	slices.Sort(b)
	slices.Sort(ratios)
	// The order statistics that enclose the median with 95 %: n/2 ± 0.98 sqrt(n).
	spread := int(math.Ceil(0.98 * math.Sqrt(pairs)))
	low, high := ratios[pairs/2-spread], ratios[pairs/2+spread]
	t.Logf("%s: %.1f us / %.1f us = %.3f [%.3f, %.3f], target %.3f", what, a[pairs/2]/1e3, b[pairs/2]/1e3,
		ratios[pairs/2], low, high, target)
	if low > target {
		t.Errorf("%s: %.3f to %.3f is beyond %.3f", what, low, high, target)
	}
}

// dial connects to an echo server. The returned function makes one round trip of a Get's bytes.
func dial(t *testing.T, path string) func() {
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	ask, answer := make([]byte, 88), make([]byte, 56)
	return func() {
		if _, err := c.Write(ask); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, answer); err != nil {
			t.Fatal(err)
		}
	}
}

// resp is a minimal redis client. It reads values into one buffer.
type resp struct {
	conn net.Conn
	r    *bufio.Reader
	out  []byte
	buf  []byte
}

func startRedis(t *testing.T) *resp {
	path := filepath.Join(t.TempDir(), "redis")
	redisserver.Start(t, "--unixsocket", path)
	conn := await(t, path)
	return &resp{conn: conn, r: bufio.NewReaderSize(conn, 64<<10), buf: make([]byte, 8<<20+2)}
}

// await connects as soon as somebody listens.
func await(t *testing.T, path string) net.Conn {
	deadline := time.Now().Add(time.Minute)
	for {
		c, err := net.Dial("unix", path)
		if err == nil {
			t.Cleanup(func() { c.Close() })
			return c
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func (r *resp) send(t *testing.T, args ...string) {
	r.out = append(r.out[:0], "*"+strconv.Itoa(len(args))+"\r\n"...)
	for _, a := range args {
		r.out = append(append(append(r.out, "$"+strconv.Itoa(len(a))+"\r\n"...), a...), "\r\n"...)
	}
	if _, err := r.conn.Write(r.out); err != nil {
		t.Fatal(err)
	}
}

func (r *resp) get(t *testing.T, key string, size int) {
	r.send(t, "GET", key)
	line, err := r.r.ReadSlice('\n')
	if err != nil || string(line) != "$"+strconv.Itoa(size)+"\r\n" {
		t.Fatalf("%q %v", line, err)
	}
	if _, err := io.ReadFull(r.r, r.buf[:size+2]); err != nil {
		t.Fatal(err)
	}
}

func (r *resp) set(t *testing.T, key string, value []byte) {
	b := net.Buffers{fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n", len(key), key, len(value)), value,
		[]byte("\r\n")}
	if _, err := b.WriteTo(r.conn); err != nil {
		t.Fatal(err)
	}
	line, err := r.r.ReadSlice('\n')
	if err != nil || string(line) != "+OK\r\n" {
		t.Fatal(string(line), errors.Join(err))
	}
}
