package gate

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/cognitora/dataplane/perf/process"
	"github.com/cognitora/dataplane/router/prefix"
)

// indexBytesPerBlock is what a nearly full index adds to this process, heap or not, per block.
func indexBytesPerBlock(context.Context, *site) (float64, string, error) {
	const (
		promptBlocks = 4096
		prompts      = 192 // 0.75 of the default bound: an index is pruned to 0.8 of it
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
	fill(warm, 1) // the chain's own memory
	warm.Close()
	before, err := resident()
	if err != nil {
		return 0, "", fmt.Errorf("%w: %w", errUnmeasured, err)
	}
	x := prefix.NewIndex(prefix.Options{})
	defer x.Close()
	fill(x, prompts)
	after, err := resident()
	if err != nil {
		return 0, "", err
	}
	blocks := x.Len()
	if blocks == 0 {
		return 0, "", fmt.Errorf("the index holds no block of %d recorded", prompts*promptBlocks)
	}
	runtime.KeepAlive(x)
	return (after - before) / float64(blocks), fmt.Sprintf("%d blocks, %.1f MiB", blocks, (after-before)/(1<<20)), nil
}

// resident is this process's memory once the garbage has been given back.
func resident() (float64, error) {
	debug.FreeOSMemory()
	u, err := process.Read(os.Getpid())
	return float64(u.RSS), err
}
