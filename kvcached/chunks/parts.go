package chunks

import (
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

// list brings t.ends up to a chunk that has begun or ceased to count. Chunks whose keys do not
// follow from their names are left out. The caller holds t.mu.
func (t *Table) list(h *chunk, i uint32) {
	if h.state != counted {
		if at := h.end(); t.ends[at] == i {
			delete(t.ends, at)
		}
		return
	}
	if t.origins.at(h.origin).key.Scheme.Derived() {
		t.ends[h.end()] = i
	}
}

// end returns the place of a told chunk in ends.
func (h *chunk) end() end {
	return end{h.origin, block.Name(h.blocks[len(h.blocks)-block.NameBytes:])}
}

// Parts returns the namespace and the digests of the keys under which chunks are kept: those that
// count in a namespace and end with one of some blocks, of which that of the prompt's last chunk
// comes first, and so many chunks before. The keys of the prompt's first chunk come first, and all
// is the number of chunks. Of more than maxKeys keys the last chunks' are left out.
func (t *Table) Parts(namespace string, last []block.Name, before int) (keys string, digests []block.Digest, all int) {
	s, names := t.endingWith(namespace, last, before)
	if len(names) == 0 {
		return "", nil, 0
	}
	slices.Reverse(names)
	names = names[:min(len(names), max(maxKeys/s.Parts(), 1))]
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
	var first uint32
	for _, name := range last {
		if first = t.ends[end{uint32(number), name}]; first != 0 {
			names = append(names, t.chunks[first].name.chunk)
		}
	}
	for ; before > 0 && first != 0; before-- {
		if first = t.ends[end{uint32(number), t.chunks[first].parent}]; first != 0 {
			names = append(names, t.chunks[first].name.chunk)
		}
	}
	return t.origins.at(uint32(number)).key.Source, names
}
