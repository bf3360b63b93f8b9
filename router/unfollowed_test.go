package router

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/cognitora/dataplane/router/learned"
	"github.com/cognitora/dataplane/router/tokens"
)

// TestUnfollowedFilesAreReadAgain checks that a tokenizer that cannot be followed is loaded again
// once its files have changed, and that its model's tokens are learned until it can be.
func TestUnfollowedFilesAreReadAgain(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	x := &tokenizers{set: tokens.NewSet(nil, 0, 1<<20), taught: learned.NewMap(1 << 10),
		log: slog.New(slog.DiscardHandler)}
	wanted := map[string]tokenFiles{"m": {directory: directory}}
	vocab := map[string]int{} // a token for each byte, as byte-level tokenizers write it
	for b, other := 0, rune(0x100); b < 0x100; b++ {
		if r := rune(b); r > 0x20 && r < 0x7F || r > 0xA0 && r != 0xAD {
			vocab[string(r)] = b
		} else {
			vocab[string(other)], other = b, other+1
		}
	}
	page, err := json.Marshal(map[string]any{
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}},
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
	})
	if err != nil {
		t.Fatal(err)
	}
	put("tokenizer.json", string(page))
	put("tokenizer_config.json", `{"chat_template":"{% include 'x' %}"}`)
	for _, c := range []struct {
		what                     string
		change                   func()
		again                    bool
		failed, learned, follows bool
	}{
		{"at first", func() {}, false, false, true, false},
		{"unchanged", func() {}, true, false, true, false},
		{"half written", func() { put("tokenizer_config.json", `{"chat_`) }, true, true, true, false},
		{"changed, but not due", func() { put("tokenizer_config.json", `{"chat_template":"{{ x }}"}`) }, false, false, true, false},
		{"due", func() {}, true, false, false, true},
	} {
		c.change()
		err := x.load(wanted, c.again)["m"]
		if (err != nil) != c.failed || x.taught.Learns("m") != c.learned || x.set.Has("m") != c.follows {
			t.Errorf("%s: %v, learned %v, followed %v", c.what, err, x.taught.Learns("m"), x.set.Has("m"))
		}
	}
}
