package events

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/residency"
)

// FuzzBatch checks that no payload breaks an invariant. Counts must be right, bounds must hold, and
// reports must be well-formed. A refused payload must change nothing.
func FuzzBatch(f *testing.F) {
	text, err := os.ReadFile("testdata/forms.json")
	if err != nil {
		f.Fatal(err)
	}
	var forms map[string]string
	if err := json.Unmarshal(text, &forms); err != nil {
		f.Fatal(err)
	}
	for _, form := range forms {
		payload, _ := hex.DecodeString(form)
		f.Add(payload, []byte(nil))
	}
	files, _ := filepath.Glob("testdata/vllm-0.32/*.bin")
	for _, file := range files {
		frames := recorded(f, filepath.Base(file[:len(file)-len(".bin")]))
		f.Add(frames[len(frames)-1], frames[len(frames)-1])
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		const most = 50
		e := &engine{t: t}
		e.known = newKnowledge("m", most, &e.counts, &e.out)
		told := map[uint64]residency.Tiers{}
		for _, payload := range [][]byte{first, second, first} {
			before := e.known.blocks
			err := e.known.apply(payload)
			e.tell(told)
			if !(reader{b: payload}).whole() && (err == nil || e.known.blocks != before) {
				t.Fatal("half a batch was applied")
			}
			e.check(most, told)
		}
	})
}

// whole tells whether the bytes are one msgpack value.
func (r reader) whole() bool {
	r.skip()
	return !r.bad && len(r.b) == 0
}

// tell applies the changes to a plain map.
func (e *engine) tell(told map[uint64]residency.Tiers) {
	for {
		events, _ := e.out.take(nil, nil, "")
		if len(events) == 0 {
			return
		}
		for _, v := range events {
			if v.Kind == residency.Cleared {
				clear(told)
			}
			for i := range v.Digests {
				name := nameOf(&v.Digests[i])
				if v.Kind == residency.Stored {
					told[name] |= v.Tier
				} else if told[name] &^= v.Tier; told[name] == 0 {
					delete(told, name)
				}
			}
		}
	}
}

// check compares the knowledge with itself and with the reports.
func (e *engine) check(most int, told map[uint64]residency.Tiers) {
	t := e.known.table
	live, held := 0, map[uint64]residency.Tiers{}
	for slot := range t.blocks {
		b := &t.blocks[slot]
		for index := range media {
			if (b.held[index] > 0) != (b.tiers&(1<<index) != 0) {
				e.t.Fatalf("a block is in %v, and held %v", b.tiers, b.held)
			}
		}
		if b.tiers == 0 {
			continue
		}
		live++
		for i := range b.count {
			held[nameOf(&t.digestsOf(uint32(slot))[i])] |= b.tiers
		}
	}
	if live != e.known.blocks || live != len(t.slots) || live > most || len(t.tails) > live {
		e.t.Fatalf("%d blocks, %d slots, %d counted, %d tails", live, len(t.slots), e.known.blocks, len(t.tails))
	}
	if !maps.Equal(held, told) {
		e.t.Fatalf("known is %v, reported was %v", held, told)
	}
}

// script is a connection whose peer has already sent everything.
type script struct {
	net.Conn
	in io.Reader
}

func (s *script) Read(b []byte) (int, error)       { return s.in.Read(b) }
func (s *script) Write(b []byte) (int, error)      { return len(b), nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// FuzzZMTP checks that no bytes from the peer break an invariant, and that frames stay within their
// bounds.
func FuzzZMTP(f *testing.F) {
	var greeting [greetingSize]byte
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	ready := append([]byte("\x05READY\x0bSocket-Type\x00\x00\x00\x03"), "PUB"...)
	hello := appendFrame(greeting[:], flagCommand, ready)
	f.Add(hello)
	f.Add(appendFrame(appendFrame(appendFrame(bytes.Clone(hello), flagMore, []byte("kv")), flagMore, make([]byte, 8)),
		0, make([]byte, 300)))
	f.Add(appendFrame(appendFrame(bytes.Clone(hello), flagCommand, []byte("\x04PING\x00\x10context")), 0, []byte("x")))
	f.Add(append(bytes.Clone(hello), flagLong, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff))
	f.Add(appendFrame(greeting[:], flagCommand, []byte("\x05ERROR\x03bad")))
	f.Fuzz(func(t *testing.T, in []byte) {
		s, err := open(&script{in: bytes.NewReader(in)}, "SUB", "PUB", "XPUB")
		for err == nil {
			var parts [][]byte
			if parts, err = s.message(); err != nil {
				break
			}
			size := 0
			for _, p := range parts {
				size += len(p)
			}
			if len(parts) == 0 || len(parts) > maxParts || size > len(in) {
				t.Fatalf("%d frames of %d bytes out of %d", len(parts), size, len(in))
			}
			_, _, _ = batchOf(parts)
		}
		if s != nil && cap(s.buf) > len(in)+2*growBy {
			t.Fatalf("%d bytes of memory for %d", cap(s.buf), len(in))
		}
	})
}

// TestDecodingTakesNoMemory checks that decoding does not allocate after a batch of the same size.
func TestDecodingTakesNoMemory(t *testing.T) {
	payload := batchFrom(t, 0, stores([]any{uint64(1 << 63), 2}, nil, count(100_000, 32), 16, fields{"medium": "GPU",
		"extra_keys": []any{nil, nil}}), removes([]any{1}, "GPU"))
	var d decoder
	each := func(*event) {}
	if err := d.decode(payload, each); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _ = d.decode(payload, each) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	e := newEngine(t, 100)
	again := func() {
		_ = e.known.apply(payload)
		_ = e.known.apply(payload)
		e.out.reset()
	}
	again()
	if n := testing.AllocsPerRun(100, again); n > 8 { // for closures and seeds
		t.Errorf("%v allocations to apply two batches", n)
	}
}
