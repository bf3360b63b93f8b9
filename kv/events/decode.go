package events

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// errMalformed says that a payload is not a batch of events.
var errMalformed = errors.New("kvevents: malformed batch")

// Bounds on an event. A larger event is not read.
const (
	maxHashes = 1 << 16
	maxTokens = 1 << 21
)

// kind is the kind of an event.
type kind uint8

const (
	unknownEvent kind = iota // an event of a later version
	stored
	removed
	cleared
)

// hash is an engine's name of a block: a number, or the first 16 bytes of a longer one.
type hash [2]uint64

// event is an event as it was sent. The event's memory is reused for the next one. The event's
// texts alias the payload.
type event struct {
	kind       kind
	hashes     []hash
	parent     hash
	hasParent  bool
	tokens     []uint32
	blockSize  int
	loraID     int64
	hasLoraID  bool
	loraName   []byte
	medium     []byte
	extra      []byte // msgpack: for each block nil, or the other inputs of the block's hash
	salt       []byte // sent under its own name by newer engines
	group      int
	spec       []byte // kind of the group's cache; empty: unknown
	unreadable bool   // a field has an unknown form; the event is left out
}

// field is the number of a field of an event.
type field uint8

const (
	fieldOther field = iota
	fieldType
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoraID
	fieldMedium
	fieldLoraName
	fieldExtra
	fieldGroup
	fieldSpec
	fieldSalt
)

// fieldsByName and kindsByName are for events that are maps. Lookups by a converted slice do not
// allocate.
var (
	fieldsByName = map[string]field{
		"type": fieldType, "block_hashes": fieldHashes, "parent_block_hash": fieldParent, "token_ids": fieldTokens,
		"block_size": fieldBlockSize, "lora_id": fieldLoraID, "medium": fieldMedium, "lora_name": fieldLoraName,
		"extra_keys": fieldExtra, "group_idx": fieldGroup, "kv_cache_spec_kind": fieldSpec, "cache_salt": fieldSalt,
	}
	kindsByName = map[string]kind{"BlockStored": stored, "BlockRemoved": removed, "AllBlocksCleared": cleared}
)

// The fields of events that are arrays, in their order.
var (
	storedFields = []field{fieldType, fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoraID, fieldMedium,
		fieldLoraName, fieldExtra, fieldGroup, fieldSpec}
	removedFields = []field{fieldType, fieldHashes, fieldMedium, fieldGroup}
)

// decoder reads batches.
type decoder struct {
	event event
	rank  int // data-parallel rank of the batch; 0 if missing
}

// decode reads a batch and calls each once for every event. A batch is an array [time, [event ...],
// rank], or a map with these members. decode finds a malformed batch before the first call, so a
// batch is applied as a whole or not at all.
func (d *decoder) decode(payload []byte, each func(*event)) error {
	events, err := d.frame(payload)
	if err != nil {
		return err
	}
	r := reader{b: events}
	n := r.array()
	for range n {
		if d.read(&r, &d.event); r.bad {
			return errMalformed // frame has checked that the payload is msgpack
		}
		each(&d.event)
	}
	return nil
}

// frame finds the events of a batch, and checks that the whole payload is msgpack.
func (d *decoder) frame(payload []byte) (events []byte, err error) {
	r := reader{b: payload}
	d.rank = 0
	if r.isMap() {
		for range r.fields() {
			switch name := r.text(); string(name) {
			case "events":
				events = r.events()
			case "data_parallel_rank", "dp_rank", "attn_dp_rank":
				d.readRank(&r)
			default:
				r.skip()
			}
		}
	} else {
		for i := range r.array() {
			switch i {
			case 1:
				events = r.events()
			case 2:
				d.readRank(&r)
			default:
				r.skip()
			}
		}
	}
	if r.bad || len(r.b) > 0 || events == nil {
		return nil, fmt.Errorf("%w of %d bytes", errMalformed, len(payload))
	}
	return events, nil
}

func (d *decoder) readRank(r *reader) {
	switch {
	case r.null():
	case r.isInt():
		d.rank = r.small()
	default:
		r.skip()
	}
}

// events reads a list of events as bytes.
func (r *reader) events() []byte {
	before := r.b
	for range r.array() {
		if !r.isArray() && !r.isMap() {
			r.fail()
			return nil
		}
		r.skip()
	}
	return before[:len(before)-len(r.b)]
}

// raw reads a value as bytes.
func (r *reader) raw() []byte {
	before := r.b
	r.skip()
	if r.bad {
		return nil
	}
	return before[:len(before)-len(r.b)]
}

// read reads an event.
func (d *decoder) read(r *reader, e *event) {
	*e = event{hashes: e.hashes[:0], tokens: e.tokens[:0]}
	if r.isMap() {
		for range r.fields() {
			if !r.isText() {
				r.skip()
				r.skip()
				continue
			}
			e.set(fieldsByName[string(r.text())], r)
		}
		return
	}
	n := r.array()
	if n == 0 || !r.isText() {
		for range n {
			r.skip()
		}
		return
	}
	e.kind = kindsByName[string(r.text())]
	order := storedFields
	if e.kind == removed {
		order = removedFields
	}
	for i := 1; i < n; i++ {
		if i < len(order) && e.kind != unknownEvent {
			e.set(order[i], r)
		} else {
			r.skip()
		}
	}
}

// set reads a field. A nil counts as absent.
func (e *event) set(f field, r *reader) {
	if r.null() {
		return
	}
	value := *r // a copy, to skip the value whatever its kind
	switch f {
	case fieldOther:
		r.skip()
		return
	case fieldType:
		e.kind = kindsByName[string(r.text())]
	case fieldHashes:
		for range r.atMost(maxHashes) {
			e.hashes = append(e.hashes, r.hash())
		}
	case fieldParent:
		e.parent, e.hasParent = r.hash(), true
	case fieldTokens:
		e.tokens = r.tokens(e.tokens)
	case fieldBlockSize:
		e.blockSize = r.small()
	case fieldLoraID:
		id, _ := r.int()
		e.loraID, e.hasLoraID = int64(id), true
	case fieldMedium:
		e.medium = r.text()
	case fieldLoraName:
		e.loraName = r.text()
	case fieldExtra:
		e.extra = r.raw()
	case fieldGroup:
		e.group = r.small()
	case fieldSpec:
		e.spec = r.text()
	case fieldSalt:
		e.salt = r.text()
	}
	if r.bad {
		e.unreadable = true
		*r = value
		r.skip()
	}
}

// atMost reads the head of an array of no more than most elements.
func (r *reader) atMost(most int) int {
	n := r.array()
	if n > most {
		r.fail()
		return 0
	}
	return n
}

// hash reads a block's hash.
func (r *reader) hash() (h hash) {
	if r.isInt() {
		h[0], _ = r.int()
		return h
	}
	b := r.text()
	var both [16]byte
	copy(both[:], b)
	if len(b) == 0 || len(b) > 64 {
		r.fail()
	}
	h[0], h[1] = binary.LittleEndian.Uint64(both[:]), binary.LittleEndian.Uint64(both[8:])
	return h
}

// tokens reads token ids. Of a pair, which is a token with its successor, it takes the first.
func (r *reader) tokens(to []uint32) []uint32 {
	n := r.atMost(maxTokens)
	to = slices.Grow(to, n)
	for range n {
		if !r.isArray() {
			to = append(to, r.token())
			continue
		}
		k := r.array()
		if k == 0 {
			r.fail()
			break
		}
		to = append(to, r.token())
		for range k - 1 {
			r.skip()
		}
	}
	return to
}
