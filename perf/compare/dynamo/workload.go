// Command dynamo writes the replay of a trace for the Rust program in this folder, which applies it
// to the indexes of the crate dynamo-kv-router.
//
//	dynamo TRACE|"" CAPACITY OUT
//
// Without TRACE, the project's generator makes a trace. CAPACITY has the meaning of the field in
// blocks.Options. OUT is a sequence of little-endian 64-bit words. OUT begins with the number of
// nodes and of requests. Each request has its node and the number of leading blocks that the node
// holds. Then come the number of blocks of its prompt, the number of removed blocks, and the keys
// of both.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"

	"github.com/cognitora/dataplane/perf/blocks"
	"github.com/cognitora/dataplane/perf/trace"
)

// nodes is the number of nodes. The benchmark of router/residency has the same number.
const nodes = 8

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("usage: dynamo TRACE|\"\" CAPACITY OUT")
	}
	capacity, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("CAPACITY is a number of blocks: %w", err)
	}
	r, err := replay(args[0], blocks.Options{Nodes: nodes, Capacity: capacity})
	if err != nil {
		return err
	}
	f, err := os.Create(args[2])
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	write(w, r)
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

func replay(path string, o blocks.Options) (*blocks.Replay, error) {
	if path == "" {
		return blocks.New(blocks.Generated(), o)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return blocks.New(trace.NewReader(f), o)
}

// write does not check for errors, because Flush returns them.
func write(w *bufio.Writer, r *blocks.Replay) {
	var word [8]byte
	put := func(values ...uint64) {
		for _, v := range values {
			binary.LittleEndian.PutUint64(word[:], v)
			_, _ = w.Write(word[:])
		}
	}
	put(uint64(r.Nodes), uint64(len(r.Ops)))
	for i := range r.Ops {
		op := &r.Ops[i]
		put(uint64(op.Node), uint64(op.Held), uint64(len(op.Prompt)), uint64(len(op.Removed)))
		put(op.Prompt...)
		put(op.Removed...)
	}
}
