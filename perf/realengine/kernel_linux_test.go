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

// kernelTimes holds times to first token and between tokens as the kernel takes them, of an engine that knows nothing of it, to a client's: means to 1 ms, quantiles to the same
// bucket or the next one.
func kernelTimes(t *testing.T, e *engine) {
	if os.Geteuid() != 0 {
		t.Skip("programs can be put into the kernel by root only")
	}
	e.awaitReady(t)
	to := netip.MustParseAddrPort(e.address)
	body := func(n int) string {
		return fmt.Sprintf(`{"model":"tiny","prompt":%q,"stream":true,"max_tokens":%d,"temperature":0,"ignore_eos":true}`, prose("kernel", 600), n)
	}
	if _, err := stopwatch.Completions(to, body(8), 2, nil); err != nil { // what is slow once
		t.Fatal(err)
	}
	k := programs(t)
	if err := k.WatchPort(to.Port()); err != nil {
		t.Fatal(err)
	}
	const streams, tokens = 10, 48
	seen, err := stopwatch.Completions(to, body(tokens), streams, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := k.Tokens(to.Port())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d requests, %d streams, %d joined, %d coalesced", got.Requests, got.Streams, got.Joined, got.Coalesced)
	if got.Requests != streams || got.Streams != streams || got.Singles+got.Unmeasured != 0 {
		t.Errorf("of %d streams: %+v", streams, got)
	}
	agree(t, "TTFT", got.TTFT, seen.TTFT)
	agree(t, "ITL", got.ITL, seen.ITL)
}

// programs are those of package bpf, in a place of the test's own.
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

// bucketOf is the number of the bucket that d is in.
func bucketOf(d time.Duration) (i int) {
	for upper := time.Duration(0); upper <= d; i++ {
		_, upper = bpf.Bounds(i)
	}
	return i - 1
}

func agree(t *testing.T, what string, kernel bpf.Histogram, client []time.Duration) {
	t.Helper()
	seen := bpf.Histogram{Buckets: make([]uint64, 384)}
	for _, d := range client {
		seen.Count, seen.Sum = seen.Count+1, seen.Sum+d
		seen.Buckets[bucketOf(d)]++
	}
	t.Logf("%s: kernel mean %v of %d, client %v of %d", what, kernel.Mean(), kernel.Count, seen.Mean(), seen.Count)
	if off := kernel.Mean() - seen.Mean(); off.Abs() > time.Millisecond {
		t.Errorf("mean %s is off by %v", what, off)
	}
	for _, q := range []float64{0.5, 0.9, 0.99} {
		if (1-q)*float64(len(client)) < 1 {
			continue // one that waited for a CPU would decide
		}
		ours, theirs := kernel.Quantile(q), seen.Quantile(q)
		t.Logf("%v of %s: kernel %v, client %v", q, what, ours, theirs)
		if off := bucketOf(ours) - bucketOf(theirs); max(off, -off) > 1 {
			t.Errorf("%v of %s is off by %d buckets", q, what, off)
		}
	}
}
