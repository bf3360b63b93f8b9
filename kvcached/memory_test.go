package kvcached

import (
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/store"
)

// Bounds of the ordinary memory for one block, in a daemon without a fleet.
const (
	bytesPerBlock = 200 // block in RAM: tables of the RAM tier and of residency
	bytesPerRow   = 80  // additional bytes for a block that is on SSD
	bytesPerName  = 40  // additional bytes for each remembered name of an evicted block
)

// quietDaemon starts a daemon with tiers and no listeners but its sockets.
func quietDaemon(t *testing.T, ram, ssd int64) *Daemon {
	t.Helper()
	c, _ := settings(t, t.TempDir(), func(c *Config) {
		c.Daemon.RAM, c.Daemon.SSD = config.Size(ram), config.Size(ssd)
		c.RESP.Listen, c.S3.Listen, c.QUIC.Listen, c.GRPC.Listen = "", "", "", ""
	})
	d, _ := begin(t, c)
	return d
}

// tables is the memory of the tables of the RAM tier and of residency.
func (d *Daemon) tables() int64 { return d.store.Stats().RAM.Tables + d.index.Stats().Bytes }

func heapBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // frees the buffers that pools keep for one more collection
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

var memoryNamespace = block.Namespace{Model: "m", Revision: "1", DType: "bf16", Layout: "test", Tokens: 16, TP: 1,
	PP: 1}.String()

// addrOf is the address of block i of prompts.
func addrOf(i int) block.Addr {
	d := block.Next(block.Seed("m", "", ""), &[block.Tokens]uint32{uint32(i)})
	return block.Addr{Digest: d, Model: block.IDOf(memoryNamespace), Layer: block.LayerAll}
}

// prompts puts blocks with the numbers from from to to-1, in chains of 64. Each block takes the
// arena's smallest piece.
func prompts(t *testing.T, s *store.Store, from, to int) {
	t.Helper()
	var payload [64]byte
	for i := from; i < to; i++ {
		it := store.Item{Addr: addrOf(i), Namespace: memoryNamespace}
		if i%64 > 0 {
			it.Parent = addrOf(i - 1).Digest
		}
		binary.LittleEndian.PutUint64(payload[:], uint64(i))
		if _, err := s.Put(t.Context(), it, payload[:], false); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMemoryPerBlock measures the memory of the daemon's tables for one block. The tables' own
// count and the growth of the heap must stay within the bound.
func TestMemoryPerBlock(t *testing.T) {
	if ram.Poisoned {
		t.Skip("the race detector has memory of its own")
	}
	const first, blocks = 1024, 32 * 1024
	d := quietDaemon(t, (first+blocks)*ram.Granule, 0)
	prompts(t, d.store, 0, first)
	tables, heap := d.tables(), heapBytes()
	prompts(t, d.store, first, first+blocks)
	if st := d.store.Stats(); d.index.Stats().OwnBlocks != first+blocks || st.RAM.Blocks != first+blocks {
		t.Fatalf("%d blocks in RAM, %d in the index", st.RAM.Blocks, d.index.Stats().OwnBlocks)
	}
	perTables, perHeap := float64(d.tables()-tables)/blocks, float64(heapBytes()-heap)/blocks
	t.Logf("in RAM only: %.1f bytes in tables, %.1f of heap", perTables, perHeap)
	if perTables >= bytesPerBlock || perHeap >= bytesPerBlock {
		t.Errorf("that is not less than %d", bytesPerBlock)
	}
	prompts(t, d.store, first+blocks, 3*(first+blocks))
	evicting, names := float64(d.tables()-tables)/blocks, d.store.Stats().RAM.Names
	t.Logf("when as many have been evicted twice, with the names of %d of them: %.1f bytes in tables", names, evicting)
	if evicting >= bytesPerBlock+bytesPerName {
		t.Errorf("that is not less than %d", bytesPerBlock+bytesPerName)
	}
}

// TestMemoryPerBlockOnBoth measures the memory of blocks that are on SSD as well.
func TestMemoryPerBlockOnBoth(t *testing.T) {
	if ram.Poisoned {
		t.Skip("the race detector has memory of its own")
	}
	const step, blocks = 1024, 8 * 1024
	d := quietDaemon(t, (step+blocks)*ram.Granule, 256<<20)
	both := func(from int) {
		prompts(t, d.store, from, from+step)
		for i := from; i < from+step; i++ { // the second use sends the blocks to SSD
			b, err := d.store.Get(t.Context(), addrOf(i))
			if err != nil {
				t.Fatal(err)
			}
			b.Release()
		}
		awaitThat(t, "they are on SSD", func() bool { return d.store.Stats().WrittenBehind == uint64(from+step) })
	}
	both(0)
	index := func() int64 { return d.store.Stats().SSD.IndexBytes }
	tables, rows := d.tables(), index()
	for from := step; from < step+blocks; from += step {
		both(from)
	}
	perTables, perRow := float64(d.tables()-tables)/blocks, float64(index()-rows)/blocks
	t.Logf("in RAM and on SSD: %.1f bytes in tables and %.1f in the index of SSD", perTables, perRow)
	if perTables >= bytesPerBlock || perRow >= bytesPerRow {
		t.Errorf("that is not less than %d and %d", bytesPerBlock, bytesPerRow)
	}
}
