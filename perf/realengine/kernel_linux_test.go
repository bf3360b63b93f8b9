package realengine

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/perf/stopwatch"
)

func TestLlamaKernel(t *testing.T) {
	s := prepared(t, "llama")
	kernelTimes(t, s.engine(t, "llama-kernel", llamaFlags(s.model)...))
}

func TestVLLMKernel(t *testing.T) {
	s := prepared(t, "vllm")
	kernelTimes(t, s.engine(t, "vllm-kernel", vllmFlags(s.model)...))
}

// kernelTimes compares the kernel's times to first token and between tokens with those of packets
// at the client's socket. The engine knows nothing of the measurement. Packet times do not depend
// on who waits for a CPU. On a host whose threads never wait for a CPU, kernelTimes also compares
// the kernel's times with the client's own.
func kernelTimes(t *testing.T, e *engine) {
	if os.Geteuid() != 0 {
		t.Skip("programs can be put into the kernel by root only")
	}
	e.awaitReady(t)
	to := netip.MustParseAddrPort(e.address)
	body := func(n int) string {
		return fmt.Sprintf(`{"model":"tiny","prompt":%q,"stream":true,"max_tokens":%d,"temperature":0,"ignore_eos":true}`, prose("kernel", 600), n)
	}
	if _, err := stopwatch.Completions(to, body(8), 2, nil); err != nil { // the first ones are slow
		t.Fatal(err)
	}
	k := programs(t)
	if err := k.WatchPort(to.Port()); err != nil {
		t.Fatal(err)
	}
	waits := hostWaits(t, k)
	const streams, tokens = 200, 48
	seen, err := stopwatch.Completions(to, body(tokens), streams, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := k.Tokens(to.Port())
	if err != nil {
		t.Fatal(err)
	}
	waited := waits()
	t.Logf("%d requests, %d streams, %d joined, %d coalesced, %d unclear; 99 %% of the host's waits for a CPU were "+
		"within %v", got.Requests, got.Streams, got.Joined, got.Coalesced, got.Unclear, waited)
	busy := waited >= 2*time.Millisecond
	if got.Requests != streams || got.Streams > streams || got.Streams < streams && !busy || got.Unmeasured != 0 {
		t.Errorf("of %d streams: %d requests, %d streams, %d singles, %d unmeasured", streams, got.Requests,
			got.Streams, got.Singles, got.Unmeasured)
	}
	agree(t, "TTFT", "packets", got.TTFT, seen.Came.TTFT, busy)
	agree(t, "ITL", "packets", got.ITL, seen.Came.ITL, busy)
	if !busy {
		agree(t, "TTFT", "client", got.TTFT, seen.Read.TTFT, busy)
		agree(t, "ITL", "client", got.ITL, seen.Read.ITL, busy)
	}
}

// hostWaits returns a function that returns the 99th percentile of the waits of the host's threads
// for a CPU since then.
func hostWaits(t *testing.T, k *bpf.Set) func() time.Duration {
	t.Helper()
	look := func() (h bpf.Histogram) {
		if err := k.RunDelay(&h); err != nil {
			t.Fatal(err)
		}
		return h
	}
	from := look()
	return func() time.Duration { return look().Since(from).Quantile(0.99) }
}

// programs loads the programs of package bpf in a place of the test's own.
func programs(t *testing.T) *bpf.Set {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Skip("no BPF file system can be mounted: " + err.Error())
	}
	root := filepath.Join(dir, "cognitora")
	t.Cleanup(func() {
		if _, err := bpf.Clean(root); err != nil {
			t.Error(err)
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s, err := bpf.Load(bpf.Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// bucketOf returns the index of d's bucket.
func bucketOf(d time.Duration) (i int) {
	for upper := time.Duration(0); upper <= d; i++ {
		_, upper = bpf.Bounds(i)
	}
	return i - 1
}

// agree compares the kernel's times with times from another source. Means must agree within a tenth
// plus 50 us, but within 1 ms. A quantile with five samples beyond it must lie in the same bucket
// or the next one. One in twenty times may be missing, because the kernel guesses the content of a
// packet by its size. On a busy host an engine may send several tokens at once after a long gap. A
// long gap before several tokens moves a quantile.
func agree(t *testing.T, what, whose string, kernel bpf.Histogram, times []time.Duration, busy bool) {
	t.Helper()
	other := bpf.Histogram{Buckets: make([]uint64, 384)}
	for _, d := range times {
		other.Count, other.Sum = other.Count+1, other.Sum+d
		other.Buckets[bucketOf(d)]++
	}
	t.Logf("%s: kernel mean %v of %d, %s %v of %d", what, kernel.Mean(), kernel.Count, whose, other.Mean(), other.Count)
	apart := max(int(kernel.Count)-len(times), len(times)-int(kernel.Count))
	if apart > len(times)/20 {
		t.Errorf("%s: %d times, %s %d", what, kernel.Count, whose, len(times))
	}
	if off := kernel.Mean() - other.Mean(); off.Abs() > min(other.Mean()/10+50*time.Microsecond, time.Millisecond) {
		t.Errorf("mean %s is off by %v", what, off)
	}
	for _, q := range []float64{0.5, 0.9, 0.99} {
		if (1-q)*float64(len(times)) < 5 {
			continue // a few differently classified times would decide the quantile
		}
		rank := 0.0
		if busy {
			rank = float64(1+apart) / float64(len(times))
		}
		ours, least, most := kernel.Quantile(q), other.Quantile(q-rank), other.Quantile(q+rank)
		t.Logf("%v of %s: kernel %v, %s %v", q, what, ours, whose, other.Quantile(q))
		if bucketOf(ours) < bucketOf(least)-1 || bucketOf(ours) > bucketOf(most)+1 {
			t.Errorf("%v of %s is not from %v to %v, or in the next bucket", q, what, least, most)
		}
	}
}
