package chunks

import (
	"encoding/binary"
	"slices"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/lmcache"
)

// maxKeys bounds the keys that Parts returns.
const maxKeys = 1 << 14

// end names the chunk of an origin that ends with a block.
type end struct {
	origin uint32
	last   block.Name
}

// hashOf returns the hash of an end.
func (t *Table) hashOf(e end) uint64 {
	return t.mix(binary.LittleEndian.Uint64(e.last[:]), uint64(e.origin))
}

// end returns the end of a told chunk.
func (t *Table) end(h *chunk) end {
	blocks := t.blocks(h)
	return end{h.origin(), block.Name(blocks[len(blocks)-block.NameBytes:])}
}

// list brings t.ends up to a chunk that has begun or ceased to count. Chunks whose keys do not
// follow from their names are left out, and those that end like one that counts already. The caller
// holds t.mu.
func (t *Table) list(r ref, counts bool) {
	h := t.chunk(r)
	if !t.derived(h) {
		return
	}
	end := t.end(h)
	switch at, first := t.endsWith(end); {
	case counts && first == nil:
		t.ends.put(t.hashOf(end), named(r.number()))
	case !counts && first == h:
		t.ends.cut(at)
	}
}

// endsWith finds the chunk in t.ends that ends so; nil: there is none.
func (t *Table) endsWith(end end) (at entry[named], h *chunk) {
	at, ok := findNamed(&t.ends, t.hashOf(end), func(n uint32) bool { return t.end(t.chunk(ref(n))) == end })
	if ok {
		h = t.chunk(ref(at.get().number()))
	}
	return at, h
}

// Parts returns the namespace and the digests of the keys under which chunks are kept: those that
// count in a namespace and end with one of some blocks, of which that of the prompt's last chunk
// comes first, and so many chunks before. The keys of the prompt's first chunk come first, and all
// is the number of chunks. Of more than maxKeys keys the last chunks' are left out, and there is
// none if one chunk has more.
func (t *Table) Parts(namespace string, last []block.Name, before int) (keys string, digests []block.Digest, all int) {
	s, names := t.endingWith(namespace, last, before)
	if len(names) == 0 || s.Parts() > maxKeys {
		return "", nil, 0
	}
	slices.Reverse(names)
	names = names[:min(len(names), maxKeys/s.Parts())]
	id := block.IDOf(s.Keys)
	var text []byte
	for _, n := range names {
		for k := range s.Every(n) {
			text = lmcache.Append(text[:0], &k)
			a := block.OfKey(id, text)
			digests = append(digests, a.Digest)
		}
	}
	return s.Keys, digests, len(names)
}

// endingWith returns the source and the names of the chunks of Parts, the prompt's last one first.
func (t *Table) endingWith(namespace string, last []block.Name, before int) (s alias.Source, names []alias.Name) {
	t.mu.Lock()
	defer t.mu.Unlock()
	number := slices.IndexFunc(t.origins.list, func(o held[origin, space]) bool {
		return o.value.text == namespace && o.holds > 0
	})
	if number < 0 || namespace == "" {
		return s, nil
	}
	var first *chunk
	for _, name := range last {
		if _, first = t.endsWith(end{uint32(number), name}); first != nil {
			names = append(names, t.name(first))
		}
	}
	for ; before > 0 && first != nil; before-- {
		if _, first = t.endsWith(end{uint32(number), t.parent(first)}); first != nil {
			names = append(names, t.name(first))
		}
	}
	return t.origins.at(uint32(number)).key.Source, names
}
