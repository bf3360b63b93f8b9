package engine

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// medium and cacheKind are vLLM's values for blocks in the device.
const (
	medium    = "GPU"
	cacheKind = "full_attention"
)

// batch is one published KV event batch.
type batch struct {
	seq     uint64
	payload []byte
}

// eventLog collects the events of one step, encodes them as a batch, keeps the latest batches for
// replay and passes each to send. A nil log does nothing. The scheduler adds events. Any goroutine
// may ask for a replay.
type eventLog struct {
	form    KVEvents
	send    func(batch)
	pending []event

	mu   sync.Mutex
	kept []batch // oldest first, at most form.BufferSteps
	next uint64  // sequence number of the next batch
}

// event is BlockStored if tokens are set, BlockRemoved if only hashes are set, and AllBlocksCleared
// otherwise.
type event struct {
	hashes []blockHash
	parent *blockHash
	tokens []uint32
	block  int    // tokens per block
	salt   string // of the first block; "" for later blocks of the chain

	adapter   string // name of the LoRA adapter; "": the base model
	adapterID int
}

// stored announces the blocks [from, to) of q.
func (l *eventLog) stored(q *sequence, from, to, blockTokens int) {
	if l == nil || from == to {
		return
	}
	e := event{
		hashes: slices.Clone(q.hashes[from:to]),
		tokens: q.tokens(from*blockTokens, to*blockTokens),
		block:  blockTokens, adapter: q.adapter, adapterID: q.adapterID,
	}
	if from == 0 {
		e.salt = q.salt
	} else {
		parent := q.hashes[from-1]
		e.parent = &parent
	}
	l.pending = append(l.pending, e)
}

// removed announces an eviction.
func (l *eventLog) removed(h blockHash) {
	if l != nil {
		l.pending = append(l.pending, event{hashes: []blockHash{h}})
	}
}

// cleared announces an empty cache.
func (l *eventLog) cleared() {
	if l != nil {
		l.pending = append(l.pending, event{})
	}
}

// publish sends the added events as one batch, if there are any.
func (l *eventLog) publish() {
	if l == nil || len(l.pending) == 0 {
		return
	}
	payload := l.form.encode(time.Now(), l.pending)
	l.pending = l.pending[:0]
	l.mu.Lock()
	b := batch{seq: l.next, payload: payload}
	l.next++
	if len(l.kept) == l.form.BufferSteps {
		l.kept = slices.Delete(l.kept, 0, 1+len(l.kept)/16)
	}
	l.kept = append(l.kept, b)
	l.mu.Unlock()
	l.send(b)
}

// since returns the kept batches from a sequence number on.
func (l *eventLog) since(seq uint64) []batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, _ := slices.BinarySearchFunc(l.kept, seq, func(b batch, s uint64) int {
		return cmp.Compare(b.seq, s)
	})
	return slices.Clone(l.kept[i:])
}

// encode writes a batch, [time, [event ...], rank], as msgpack.
func (k KVEvents) encode(at time.Time, events []event) []byte {
	var buf bytes.Buffer
	w := packer{msgpack.NewEncoder(&buf)}
	w.UseCompactInts(true)
	w.array(3)
	w.put(float64(at.UnixNano()) / 1e9)
	w.array(len(events))
	for _, e := range events {
		k.event(w, e)
	}
	w.put(k.DPRank)
	return buf.Bytes()
}

// packer ignores the errors of an encoder over a bytes.Buffer, which never fails.
type packer struct{ *msgpack.Encoder }

func (w packer) array(n int)   { _ = w.EncodeArrayLen(n) }
func (w packer) fields(n int)  { _ = w.EncodeMapLen(n) }
func (w packer) put(v any)     { _ = w.Encode(v) }
func (w packer) name(n string) { _ = w.EncodeString(n) }

func (k KVEvents) event(w packer, e event) {
	switch {
	case len(e.tokens) > 0:
		k.blockStored(w, e)
	case len(e.hashes) > 0:
		k.record(w, "BlockRemoved", []field{
			{"block_hashes", k.hashes(e.hashes)}, {"medium", medium}, {"group_idx", 0},
		})
	default:
		k.record(w, "AllBlocksCleared", nil)
	}
}

// field is one named value. In the array form the position of a field replaces its name.
type field struct {
	name  string
	value any
}

func (k KVEvents) blockStored(w packer, e event) {
	var parent any
	if e.parent != nil {
		parent = k.hash(*e.parent)
	}
	extra := make([]any, len(e.hashes))
	var id, adapter any
	for i := range extra {
		var keys []string
		if e.adapter != "" {
			id, adapter, keys = e.adapterID, e.adapter, append(keys, e.adapter)
		}
		if i == 0 && e.salt != "" {
			keys = append(keys, e.salt)
		}
		if keys != nil {
			extra[i] = keys
		}
	}
	k.record(w, "BlockStored", []field{
		{"block_hashes", k.hashes(e.hashes)}, {"parent_block_hash", parent}, {"token_ids", e.tokens},
		{"block_size", e.block}, {"lora_id", id}, {"medium", medium}, {"lora_name", adapter},
		{"extra_keys", extra}, {"group_idx", 0}, {"kv_cache_spec_kind", cacheKind},
	})
}

func (k KVEvents) record(w packer, kind string, fields []field) {
	if k.Events == EventArray {
		w.array(1 + len(fields))
		w.name(kind)
	} else {
		w.fields(1 + len(fields))
		w.name("type")
		w.name(kind)
	}
	for _, f := range fields {
		if k.Events == EventMap {
			w.name(f.name)
		}
		w.put(f.value)
	}
}

func (k KVEvents) hashes(hs []blockHash) []any {
	out := make([]any, 0, len(hs))
	for _, h := range hs {
		out = append(out, k.hash(h))
	}
	return out
}

func (k KVEvents) hash(h blockHash) any {
	if k.Hashes == HashBytes {
		return h[:]
	}
	return binary.BigEndian.Uint64(h[:8])
}
