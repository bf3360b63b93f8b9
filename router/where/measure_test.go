package where

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// TestMeasure checks that a measured prompt is as long as a found one, has no keys, and is held by
// no node.
func TestMeasure(t *testing.T) {
	f := &Finder{Memo: NewMemo(4 << 20), Metrics: metrics.New()}
	long := conversation("long", 12, "and now?")
	seen := &Prompt{}
	see(t, f, seen, long) // a second scan skips the beginning
	ids := bytes.TrimSuffix(bytes.Repeat([]byte("7,"), 100), []byte(","))
	for name, c := range map[string]struct {
		api  scan.API
		body []byte
	}{
		"short":     {scan.Chat, []byte(`{"model":"sim","messages":[{"role":"user","content":"hi"}]}`)},
		"a chat":    {scan.Chat, turns("be brief", strings.Repeat("the sea. ", 100))},
		"skipped":   {scan.Chat, long},
		"token ids": {scan.Completions, fmt.Appendf(nil, `{"model":"sim","prompt":[%s]}`, ids)},
		"too long": {scan.Chat, fmt.Appendf(nil, `{"model":"sim","messages":[{"role":"user","content":"%s"}]}`,
			strings.Repeat("x", (prefix.MaxChain+10)*prefix.BlockBytes))},
	} {
		r := read(t, f, c.api, c.body)
		if (name == "skipped") != (r.Scan.Skipped > 0) || (name == "too long") != (r.Scan.Omitted > 0) {
			t.Fatalf("%s: %d bytes are skipped, %d omitted", name, r.Scan.Skipped, r.Scan.Omitted)
		}
		found, measured := &Prompt{}, &Prompt{}
		begin(f, found, r)
		measured.Measure(r, 3)
		if measured.Blocks != found.chain.Blocks() || measured.Tokens() != found.Tokens() {
			t.Errorf("%s: %d blocks and %d tokens, want %d and %d", name, measured.Blocks, measured.Tokens(),
				found.chain.Blocks(), found.Tokens())
		}
		if measured.Found() || !found.Found() || len(measured.Keys()) != 0 {
			t.Errorf("%s: %d keys", name, len(measured.Keys()))
		}
		for i := range 3 {
			if measured.Reach(i).Disk != 0 || measured.Coming(i) != 0 || measured.Predicted(i) != 0 {
				t.Errorf("%s: held by node %d", name, i)
			}
		}
		measured.Promote(1, "sim", measured.Reach(1))
		if measured.RendezvousKey() != 0 || len(measured.Keys()) != 0 {
			t.Errorf("%s: a key without a session", name)
		}
		r.Session = []byte("mine")
		if measured.RendezvousKey() != found.RendezvousKey() {
			t.Errorf("%s: the session's key is another", name)
		}
		measured.Reset()
		if measured.MeasureBlocks(r, 7, 1); measured.Blocks != 7 || measured.Tokens() != 7*prefix.BlockTokens ||
			measured.Found() {
			t.Errorf("%s: %d blocks of 7", name, measured.Blocks)
		}
	}
}
