package kv

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// These constants bound what kv follow remembers. Blocks beyond them are shown by the tiers that
// they are in, and leave unnamed tiers.
const (
	mostFollowed = 1 << 20 // blocks
	mostSpaces   = 1 << 16 // namespaces
)

// These are the events of kv follow.
const (
	snapshotEvent = "snapshot" // blocks that were there at the beginning
	gapEvent      = "gap"      // changes are unknown; a snapshot follows
	cameEvent     = "came"
	leftEvent     = "left"
	goneEvent     = "gone" // an engine with all its blocks
)

// happening is what kv follow tells in one line.
type happening struct {
	Event     string         `json:"event"`
	Why       string         `json:"why,omitempty"`   // of a gap
	Tiers     string         `json:"tiers,omitempty"` // those that the blocks came to or left, as in kv ls
	Blocks    int            `json:"blocks"`
	Tokens    int            `json:"tokens"`
	First     *int           `json:"first_token,omitempty"` // absent: not known
	Block     string         `json:"block,omitempty"`       // first 8 bytes of the last block's digest
	Engine    string         `json:"engine,omitempty"`      // absent: the cache
	Model     string         `json:"model,omitempty"`
	Namespace string         `json:"namespace,omitempty"`
	Layer     *uint32        `json:"layer,omitempty"`          // absent: all layers
	ByTier    map[string]int `json:"blocks_by_tier,omitempty"` // of a snapshot
}

// errColumns is the error of a message that this version cannot read.
var errColumns = errors.New("the daemon's message cannot be read: its columns do not fit together")

// sight is what a watcher has been told of a host's blocks.
type sight struct {
	model   string // empty: all
	synced  bool   // a snapshot was complete once
	lost    bool   // the stream has ended since
	reading bool   // a snapshot is being read
	holders map[uint32]string
	spaces  map[string]*followedSpace
	blocks  map[followedBlock]uint8 // tiers
	over    bool                    // a block was not remembered
}

// followedSpace is a namespace.
type followedSpace struct {
	number uint32
	text   string
	model  string
	wanted bool
}

// followedBlock names a block of a holder.
type followedBlock struct {
	digest               uint64
	holder, space, layer uint32
}

func newSight(model string) *sight {
	s := &sight{model: model}
	s.forget()
	return s
}

func (s *sight) forget() {
	s.holders, s.spaces, s.blocks = map[uint32]string{}, map[string]*followedSpace{}, map[followedBlock]uint8{}
	s.over = false
}

// take applies a message and returns what has happened. Parts of a snapshot are no happenings.
func (s *sight) take(m *pb.WatchResponse) (list []happening, err error) {
	if m.Part == pb.WatchResponse_PART_RESET {
		if s.synced && !s.lost {
			list = append(list, happening{Event: gapEvent, Why: "more has changed than the daemon remembers"})
		}
		s.forget()
		s.reading, s.lost = true, false
	}
	for _, h := range m.Holders {
		s.holders[h.Number] = h.Engine
	}
	changes, err := s.change(m)
	if err != nil {
		return nil, err
	}
	if !s.reading {
		list = append(list, changes...)
	}
	for _, number := range m.Gone {
		gone := happening{Event: goneEvent, Engine: s.holders[number], Blocks: s.drop(number)}
		gone.Tokens = gone.Blocks * block.Tokens
		if delete(s.holders, number); !s.reading && (gone.Blocks > 0 || s.model == "") {
			list = append(list, gone)
		}
	}
	if m.Part == pb.WatchResponse_PART_SYNCED {
		s.synced, s.reading = true, false
		list = append(list, s.snapshot())
	}
	return list, nil
}

// drop forgets a holder's blocks and returns their number.
func (s *sight) drop(holder uint32) (n int) {
	for b := range s.blocks {
		if b.holder == holder {
			delete(s.blocks, b)
			n++
		}
	}
	return n
}

// snapshot counts the blocks that are there. A block in two tiers, or of two holders, counts in
// both.
func (s *sight) snapshot() happening {
	h := happening{Event: snapshotEvent, Blocks: len(s.blocks), Tokens: len(s.blocks) * block.Tokens,
		ByTier: map[string]int{}}
	for _, tiers := range s.blocks {
		for bit := uint32(1); bit < uint32(pb.Tier_TIER_PINNED); bit <<= 1 {
			if uint32(tiers)&bit != 0 {
				h.ByTier[tierNames(bit)]++
			}
		}
	}
	return h
}

// space returns a namespace, or nil if its blocks are not followed.
func (s *sight) space(text string) *followedSpace {
	of := s.spaces[text]
	if of == nil {
		if len(s.spaces) >= mostSpaces {
			return nil
		}
		n, err := block.ParseNamespace(text)
		of = &followedSpace{number: uint32(len(s.spaces)), text: text, model: n.Model,
			wanted: err == nil && (s.model == "" || n.Model == s.model)}
		s.spaces[text] = of
	}
	if !of.wanted {
		return nil
	}
	return of
}

// run is a happening of blocks in a row.
type run struct {
	happening
	key    followedBlock // of the last block
	before uint64        // digest of the block before the first; 0: none, or not known
	bits   uint8
}

// change applies a message's blocks and returns the runs that came or left.
func (s *sight) change(m *pb.WatchResponse) (list []happening, err error) {
	b := m.GetBlocks()
	n := len(b.GetTiers())
	if n == 0 {
		return nil, nil
	}
	if len(b.Digests) != 8*n || len(b.Holder) != n || len(b.Namespace) != n || len(b.Layer) != n ||
		len(b.Position) != n || len(b.Parents) != 8*n {
		return nil, errColumns
	}
	var runs []run
	var ends [2]int // 1 + the index of the run to which a block that came, or left, may belong
	for i := range n {
		if int(b.Namespace[i]) >= len(m.Namespaces) {
			return nil, errColumns
		}
		of := s.space(m.Namespaces[b.Namespace[i]])
		if of == nil {
			continue
		}
		key := followedBlock{binary.BigEndian.Uint64(b.Digests[8*i:]), b.Holder[i], of.number, b.Layer[i]}
		is := b.Tiers[i] &^ uint8(pb.Tier_TIER_PINNED)
		if is == 0 && moves(b, i) {
			continue
		}
		was, known := s.set(key, is)
		if is == 0 && !known && s.over {
			was = unknownTiers
		}
		for side, bits := range [...]uint8{is &^ was, was &^ is} {
			if bits == 0 {
				continue
			}
			parent := binary.BigEndian.Uint64(b.Parents[8*i:])
			if at := ends[side] - 1; at >= 0 && runs[at].join(key, bits, parent) {
				continue
			}
			runs = append(runs, s.begin(of, key, side, bits, b.Position[i], parent))
			ends[side] = len(runs)
		}
	}
	for i := range runs {
		r := &runs[i]
		r.Tokens, r.Block = r.Blocks*block.Tokens, digestText(r.key.digest)
		list = append(list, r.happening)
	}
	return list, nil
}

// moves says whether a block's next state follows at once: watchers are told that a block has left
// its old place in its prompt before they are told of the new one.
func moves(b *pb.Blocks, i int) bool {
	return i+1 < len(b.Tiers) && b.Tiers[i+1] != 0 && b.Holder[i] == b.Holder[i+1] && b.Layer[i] == b.Layer[i+1] &&
		b.Namespace[i] == b.Namespace[i+1] && string(b.Digests[8*i:8*i+8]) == string(b.Digests[8*i+8:8*i+16])
}

// unknownTiers stands for the tiers of a block that was not remembered.
const unknownTiers = 1 << 7

// set records a block's tiers and returns the earlier ones.
func (s *sight) set(key followedBlock, is uint8) (was uint8, known bool) {
	was, known = s.blocks[key]
	switch {
	case is == 0:
		delete(s.blocks, key)
	case known || len(s.blocks) < mostFollowed:
		s.blocks[key] = is
	default:
		s.over = true
	}
	return was, known
}

// join adds a block behind the run or before it. join returns false if the block belongs to neither
// place.
func (r *run) join(key followedBlock, bits uint8, parent uint64) bool {
	if r.bits != bits || r.key.holder != key.holder || r.key.space != key.space || r.key.layer != key.layer {
		return false
	}
	switch {
	case parent != 0 && r.key.digest == parent:
		r.key = key
	case r.before != 0 && r.before == key.digest && r.First != nil && *r.First >= block.Tokens:
		r.before = parent
		*r.First -= block.Tokens
	default:
		return false
	}
	r.Blocks++
	return true
}

func (s *sight) begin(of *followedSpace, key followedBlock, side int, bits uint8, position uint32,
	parent uint64) run {
	r := run{key: key, before: parent, bits: bits, happening: happening{Event: [...]string{cameEvent, leftEvent}[side],
		Tiers: tierNames(uint32(bits)), Blocks: 1, Engine: s.holders[key.holder], Model: of.model, Namespace: of.text}}
	if position > 0 {
		r.First = new((int(position) - 1) * block.Tokens)
	}
	if key.layer != block.LayerAll {
		r.Layer = new(key.layer)
	}
	return r
}

func digestText(prefix uint64) string {
	return hex.EncodeToString(binary.BigEndian.AppendUint64(nil, prefix))
}

// from is the cell of a run's first token.
func (h *happening) from() string {
	if h.First == nil {
		return "-"
	}
	return fmt.Sprint(*h.First)
}
