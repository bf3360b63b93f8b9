package residency

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/perf/blocks"
	"github.com/cognitora/dataplane/perf/trace"
)

// cpu is the CPU time of this process, of all threads.
func cpu(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// bounded is the number of blocks per node in the replay with removals. On the public trace 8 nodes
// then hold a fifth of the distinct blocks.
const bounded = 146_000

// replayBlocks is the bound of the index, a little more than the distinct blocks of the public
// trace with a lead.
const replayBlocks = 6_000_000

// op is a request of the replay in the index's terms.
type op struct {
	node   int
	held   int32
	prompt keys
	events []Event
}

// replayed returns the trace named by CGN_TRACE, or a generated one, on 8 nodes.
func replayed(b *testing.B, capacity, lead int) (*blocks.Replay, []op) {
	s := blocks.Generated()
	if path := os.Getenv("CGN_TRACE"); path != "" {
		f, err := os.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		s = trace.NewReader(f)
	}
	r, err := blocks.New(s, blocks.Options{Nodes: 8, Capacity: capacity, Lead: lead})
	if err != nil {
		b.Fatal(err)
	}
	ops := make([]op, len(r.Ops))
	for i := range r.Ops {
		o := &r.Ops[i]
		prompt := keysOf(o.Prompt)
		ops[i] = op{node: o.Node, held: int32(o.Held), prompt: prompt, events: eventsOf(prompt, o)}
	}
	r.Ops = nil
	return r, ops
}

func eventsOf(prompt keys, o *blocks.Op) (events []Event) {
	if len(o.Removed) > 0 {
		events = append(events, Event{Kind: Removed, Keys: keysOf(o.Removed)})
	}
	if o.Held < len(prompt) {
		e := Event{Kind: Stored, Keys: prompt[o.Held:]}
		if o.Held > 0 {
			e.Parent = prompt[o.Held-1]
		}
		events = append(events, e)
	}
	return events
}

// BenchmarkReplay looks up and applies a whole trace on an empty index. Each lookup comes after all
// earlier changes. With a lead, prompts part within a group. With names BenchmarkReplay also
// measures the feeder's work: a map for each node from the engine's names of blocks to keys.
func BenchmarkReplay(b *testing.B) {
	for _, c := range []struct {
		capacity, lead int
		names          bool
	}{{0, 0, false}, {bounded, 0, false}, {0, 3, false}, {bounded, 3, false}, {0, 0, true}, {bounded, 0, true}} {
		b.Run(fmt.Sprintf("capacity=%d,lead=%d,names=%v", c.capacity, c.lead, c.names), func(b *testing.B) {
			r, ops := replayed(b, c.capacity, c.lead)
			debug.FreeOSMemory()
			before, cpuBefore := resident(b), cpu(b)
			var st Stats
			hits := 0
			for b.Loop() {
				hits, st = replayOnce(b, ops, r.Nodes, c.names)
			}
			spent := cpu(b) - cpuBefore
			if hits != r.Hits || st.Overflow > 0 {
				b.Fatalf("%d hits, want %d; %+v", hits, r.Hits, st)
			}
			b.ReportMetric(float64(r.LookedUp+r.Stored+r.Removed)*float64(b.N)/spent.Seconds()/1e6, "Mblocks/cpu-s")
			b.ReportMetric(float64(hits)/1e6, "Mhits")
			b.ReportMetric(float64(st.Bytes)/float64(st.Blocks), "B/block")
			b.ReportMetric((resident(b)-before)/1e6, "MB-resident")
			b.ReportMetric(float64(st.Blocks)/1e6, "Mdistinct")
			b.ReportMetric(float64(st.Single)/float64(st.Blocks), "single")
		})
	}
}

// resident returns the memory of this process in bytes.
func resident(b *testing.B) float64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Skip(err)
	}
	var size, pages float64
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		b.Fatal(err)
	}
	return pages * float64(os.Getpagesize())
}

func replayOnce(b *testing.B, ops []op, nodes int, names bool) (hits int, st Stats) {
	x := New(Options{MaxBlocks: replayBlocks})
	feeds := join(b, x, nodes)
	named := make([]map[uint64]Key, nodes)
	for i := range named {
		named[i] = map[uint64]Key{}
	}
	refs, matched := refsOf(feeds), make([]int32, nodes)
	for i := range ops {
		o := &ops[i]
		x.Lookup(&o.prompt, refs, matched)
		hits += int(matched[o.node])
		if names {
			translate(named[o.node], o.events)
		}
		feeds[o.node].apply(b, o.events...)
	}
	runtime.KeepAlive(named)
	return hits, x.Stats()
}

// translate does a feeder's work: it maps the engine's names of blocks to keys.
func translate(names map[uint64]Key, events []Event) {
	name := func(k Key) uint64 { return uint64(k) * 0x9e3779b97f4a7c15 }
	for i := range events {
		e := &events[i]
		for k, key := range e.Keys {
			if e.Kind == Stored {
				names[name(key)] = key
				continue
			}
			e.Keys[k] = names[name(key)]
			delete(names, name(key))
		}
	}
}

// BenchmarkApplyConcurrently applies the trace's changes of each node, with one goroutine per node.
func BenchmarkApplyConcurrently(b *testing.B) {
	r, ops := replayed(b, bounded, 0)
	var spent time.Duration
	for b.Loop() {
		x := New(Options{MaxBlocks: replayBlocks})
		feeds := join(b, x, r.Nodes)
		before := cpu(b)
		var wg sync.WaitGroup
		for node, f := range feeds {
			wg.Go(func() {
				for i := range ops {
					if o := &ops[i]; o.node == node {
						f.apply(b, o.events...)
					}
				}
			})
		}
		wg.Wait()
		spent += cpu(b) - before
	}
	b.ReportMetric(float64(r.Stored+r.Removed)*float64(b.N)/spent.Seconds()/1e6, "Mblocks/cpu-s")
}

// chainsOf returns a million blocks in chains of n; no trace has chains like these. Chains of
// different lengths share nothing.
func chainsOf(n int) [][]uint64 {
	chains := make([][]uint64, 1<<20/n)
	for i := range chains {
		chains[i] = blocks.Chain(n<<10+i, n)
	}
	return chains
}

// BenchmarkLookup looks up prompts in an index that also holds the trace. One node holds the whole
// prompt, another half of it and a third a quarter. Each call is timed, with a prompt that was made
// just before it.
func BenchmarkLookup(b *testing.B) {
	for _, capacity := range []int{0, bounded} {
		r, ops := replayed(b, capacity, 0)
		x := New(Options{MaxBlocks: 16 << 20})
		feeds := join(b, x, r.Nodes)
		for i := range ops {
			feeds[ops[i].node].apply(b, ops[i].events...)
		}
		for _, n := range []int{1 << 10, 8 << 10} {
			chains := chainsOf(n)
			for i, chain := range chains {
				for part := range 3 {
					feeds[(i+part)%r.Nodes].store(b, 0, keysOf(chain)[:n>>part])
				}
			}
			b.Run(fmt.Sprintf("capacity=%d,blocks=%d", capacity, n), func(b *testing.B) {
				timeLookups(b, x, feeds, chains)
			})
		}
	}
}

func timeLookups(b *testing.B, x *Index, feeds []*feed, chains [][]uint64) {
	refs, matched := refsOf(feeds), make([]int32, len(feeds))
	var took []time.Duration
	i := 0
	for b.Loop() {
		chain := keysOf(chains[i%len(chains)])
		begin := time.Now()
		x.Lookup(&chain, refs, matched)
		took = append(took, time.Since(begin))
		at := i % len(chains)
		if n := len(chain); int(matched[at%len(feeds)]) != n || int(matched[(at+2)%len(feeds)]) != n/4 {
			b.Fatal(matched)
		}
		i++
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
}

// BenchmarkLookupNodes looks up a prompt of 1,024 blocks that each of many nodes holds.
func BenchmarkLookupNodes(b *testing.B) {
	for _, nodes := range []int{8, 64, 1000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			x := New(Options{})
			feeds := join(b, x, nodes)
			chain := made(1, 1024)
			for _, f := range feeds {
				f.store(b, 0, chain)
			}
			refs, matched := refsOf(feeds), make([]int32, nodes)
			b.ReportAllocs()
			for b.Loop() {
				x.Lookup(&chain, refs, matched)
			}
		})
	}
}
