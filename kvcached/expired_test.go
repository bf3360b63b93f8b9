package kvcached

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

// TestExpiredBlocksLeaveRouting lets model blocks and parts of LMCache's chunks expire that are in
// RAM and on SSD, and that nobody asks for. Routers hear that both tiers have lost them.
func TestExpiredBlocksLeaveRouting(t *testing.T) {
	t.Parallel()
	c, _ := settings(t, t.TempDir(), nil)
	d, _ := begin(t, c)
	chunks, told := recordedChunks(t)
	space := block.Namespace{Model: "sim", Revision: "r", DType: "bf16", Layout: "l", Tokens: 16, TP: 1, PP: 1}.String()
	blocks := make([]string, 10)
	for i := range blocks {
		blocks[i] = fmt.Sprintf("cgn:%s:0:%02x%062x", space, i+1, 0)
	}
	all := append(blocks, chunks...)
	for i, key := range all {
		redis(t, d.At("resp"), fmt.Sprintf("SET %s %s", key, strings.Repeat("x", 28+1000*i)), "GET "+key)
	}
	if r, err := kv(t, d).TellChunks(t.Context(), told); err != nil || r.Taken != 2 {
		t.Fatal(r, err)
	}
	onSSD := func() int64 { return d.store.Stats().SSD.Records }
	awaitThat(t, "SSD has all", func() bool { return onSSD() == int64(len(all)) })
	if own := d.index.Stats().OwnBlocks; own != 10+32 {
		t.Fatal(own, "blocks count before any expired")
	}
	for _, key := range append(blocks[2:], chunks[0]) {
		redis(t, d.At("resp"), "PEXPIRE "+key+" 200")
	}
	awaitThat(t, "the expired blocks no longer count", func() bool { return d.index.Stats().OwnBlocks == 2+16 })
	if n := onSSD(); n != int64(len(all)-9) {
		t.Errorf("SSD keeps %d records", n)
	}
}
