package gate

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/cognitora/dataplane/perf/blocks"
	"github.com/cognitora/dataplane/perf/process"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/residency"
)

// indexBytesPerBlock measures how much memory of this process, on and off the heap, a nearly full
// index takes per block.
func indexBytesPerBlock(context.Context, *site) (float64, string, error) {
	const (
		promptBlocks = 4096
		prompts      = 192 // 0.75 of the default bound, because an index is pruned to 0.8 of it
	)
	text := make([]byte, promptBlocks*prefix.BlockBytes)
	for i := range text {
		text[i] = 'a'
	}
	var chain prefix.Chain
	fill := func(x *prefix.Index, n int) {
		ref := x.Join("node")
		for p := range n {
			copy(text, fmt.Sprintf("%08d", p))
			chain.Reset(prefix.Seed("model", "", ""), text, nil)
			x.Record(&chain, ref, time.Now())
		}
	}
	warm := prefix.NewIndex(prefix.Options{})
	fill(warm, 1) // allocates the chain's own memory
	warm.Close()
	return bytesPerBlock(func() (any, int, error) {
		x := prefix.NewIndex(prefix.Options{})
		defer x.Close()
		fill(x, prompts)
		return x, x.Len(), nil
	})
}

// bytesPerBlock measures how much memory of this process an index takes for each block. fill makes
// the index, and returns it with the number of blocks.
func bytesPerBlock(fill func() (index any, blocks int, err error)) (float64, string, error) {
	before, err := resident()
	if err != nil {
		return 0, "", fmt.Errorf("%w: %w", errUnmeasured, err)
	}
	x, blocks, err := fill()
	if err != nil {
		return 0, "", err
	}
	after, err := resident()
	runtime.KeepAlive(x)
	grown := after - before
	return grown / float64(blocks), fmt.Sprintf("%d blocks, %.1f MiB", blocks, grown/(1<<20)), err
}

// eventIndexBytesPerBlock measures the memory per block of the index of announced blocks, with long
// prompts on 16 nodes, each prompt on one node.
func eventIndexBytesPerBlock(context.Context, *site) (float64, string, error) {
	const (
		promptBlocks = 4096
		prompts      = 960 // 0.94 of the default bound
		nodes        = 16
	)
	keys := make([]residency.Key, promptBlocks)
	return bytesPerBlock(func() (any, int, error) {
		x := residency.New(residency.Options{})
		var refs [nodes]residency.Ref
		for n := range refs {
			refs[n] = x.Join()
		}
		for p := range prompts {
			for i, w := range blocks.Chain(p, promptBlocks) {
				keys[i] = residency.Key(w)
			}
			if err := x.Apply(refs[p%nodes], uint64(p/nodes),
				[]residency.Event{{Kind: residency.Stored, Keys: keys}}); err != nil {
				return nil, 0, err
			}
		}
		return x, x.Stats().Blocks, nil
	})
}

// resident returns this process's memory after garbage collection. Pools and finalizers need more
// than one collection, so resident collects while a collection frees memory, at most 10 times.
func resident() (float64, error) {
	least := math.Inf(1)
	for range 10 {
		debug.FreeOSMemory()
		u, err := process.Read(os.Getpid())
		if err != nil {
			return 0, err
		}
		if float64(u.RSS) >= least {
			break
		}
		least = float64(u.RSS)
	}
	return least, nil
}
