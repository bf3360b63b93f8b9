package store

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

// note appends text to any attribute.
func note(text string) func([]byte) []byte { return func([]byte) []byte { return []byte(text) } }

// TestAnnotateRAM appends to attributes until the block's piece or MaxAttr has no room. Payload,
// key and a reader's view stay as they were.
func TestAnnotateRAM(t *testing.T) {
	s := open(t, Options{})
	for _, n := range []int{28, 4000, 4096 - 9, 300_001, 1 << 20} {
		it := keyed(fmt.Sprintf("key %5d", n)) // 9 bytes
		payload := fill(n, 'p')
		put(t, s, it, payload)
		before, err := s.Get(ctx, it.Addr)
		if err != nil {
			t.Fatal(err)
		}
		for {
			err := s.Annotate(ctx, it.Addr, func(attr []byte) []byte {
				if !bytes.Equal(attr, it.Attr) {
					t.Errorf("attribute %q, want %q", attr, it.Attr)
				}
				return []byte("some text ")
			})
			if errors.Is(err, ErrNoRoom) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			it.Attr = append(it.Attr, "some text "...)
		}
		if n == 4096-9 && len(it.Attr) != 0 || n == 4000 && len(it.Attr) != 80 || n != 4000 && n != 4096-9 &&
			len(it.Attr) != 2040 {
			t.Errorf("payload of %d: an attribute of %d bytes", n, len(it.Attr))
		}
		if before.Info().Item.Attr != nil || !bytes.Equal(before.Bytes(), payload) {
			t.Error("the reader's view has changed")
		}
		before.Release()
		get(t, s, it, payload)
	}
	if err := s.Annotate(ctx, keyed("none").Addr, note("x")); !errors.Is(err, ErrMiss) {
		t.Error(err)
	}
	put(t, s, keyed("same"), nil)
	if err := s.Annotate(ctx, keyed("same").Addr, note("")); err != nil {
		t.Error(err)
	}
	get(t, s, keyed("same"), nil)
}

// TestAnnotateDisk annotates a block before SSD has it and one afterwards. Both have their
// attribute after a restart, and the changes tell it. A block that only SSD has is a miss.
func TestAnnotateDisk(t *testing.T) {
	var mu sync.Mutex
	told := map[block.Addr]string{}
	changed := func(c Change) {
		mu.Lock()
		defer mu.Unlock()
		if c.Present && c.Tier == SSD {
			told[c.Addr] = string(c.Key) + ": " + string(c.Attr)
		}
	}
	dir := t.TempDir()
	s, g := tiered(t, dir, Options{Changed: changed})
	for _, key := range []string{"before", "after", "failed", "late"} {
		if key == "before" {
			put(t, s, keyed(key), fill(5000, 'p'))
		} else {
			durable(t, s, keyed(key), fill(5000, 'p'))
		}
		if key == "failed" {
			g.set(nil, func() error { return ssd.ErrIO }, nil)
		}
		if key == "late" {
			crowd(t, s)
		}
		err := s.Annotate(ctx, keyed(key).Addr, note("blocks"))
		if wrong := (*DiskError)(nil); errors.As(err, &wrong) != (key == "failed") || errors.Is(err,
			ErrMiss) != (key == "late") {
			t.Errorf("%s: %v", key, err)
		}
		g.set(nil, nil, nil)
		if key == "before" {
			get(t, s, Item{Addr: keyed(key).Addr, Key: []byte(key), Attr: []byte("blocks")}, fill(5000, 'p'))
			eventually(t, "the read block is on SSD", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return told[keyed(key).Addr] == "before: blocks"
			})
		}
	}
	if n := s.Stats().AnnotatedBytes; n != 5000 {
		t.Errorf("%d bytes were written again, want those of one block", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	clear(told)
	s, _ = tiered(t, dir, Options{Changed: changed})
	eventually(t, "what SSD has is told", func() bool { mu.Lock(); defer mu.Unlock(); return len(told) == 4 })
	for key, attr := range map[string]string{"before": "blocks", "after": "blocks", "failed": "", "late": ""} {
		it := keyed(key)
		if got, want := told[it.Addr], key+": "+attr; got != want {
			t.Errorf("%q is told, want %q", got, want)
		}
		if attr != "" {
			it.Attr = []byte(attr)
		}
		get(t, s, it, fill(5000, 'p'))
	}
}
