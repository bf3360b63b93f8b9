package chunks

import (
	"errors"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/hicache"
	"github.com/cognitora/dataplane/kv/lmcache"
	"github.com/cognitora/dataplane/kv/vllmtier"
)

// parse reads the key of a part, of any scheme. The errors are those of alias, and
// hicache.ErrBeside.
func parse(key []byte) (alias.Key, error) {
	o, err := vllmtier.Parse(key)
	switch {
	case err == nil:
		return o.Part(), nil
	case errors.Is(err, alias.ErrForm):
		return alias.Key{}, err
	}
	if k, err := hicache.Parse(key); !errors.Is(err, alias.ErrOther) {
		return k, err
	}
	return lmcache.Parse(key)
}

// check returns an error that names the unusable field of a source, if any.
func check(s *alias.Source) error {
	switch s.Scheme {
	case alias.LMCache:
		return lmcache.Check(s)
	case alias.VLLMTier:
		return vllmtier.Check(s)
	case alias.HiCache, alias.HiCacheMLA:
		return hicache.Check(s)
	}
	return alias.Unusable("%q is no scheme of keys that this daemon knows", s.Scheme)
}

// carrierOf returns the address of the part that carries the note on a told chunk, if the key
// follows from the chunk's name.
func carrierOf(s *alias.Source, keys block.ModelID, n alias.Name) (a block.Addr) {
	if s.Scheme == alias.LMCache {
		k := s.Carrier(n)
		a = block.OfKey(keys, lmcache.Append(nil, &k))
	}
	return a
}

// keyed says whether the key of a chunk's carrier follows from the chunk's name.
func keyed(k *alias.Key) bool { return k.Scheme == alias.LMCache }

// pages are SGLang's pages of a model in a namespace of keys.
type pages struct{ keys, model string }

// besides notes that a model keeps more than pages, so that its pages do not count until the
// daemon's end. Of more than maxOrigins models all are taken for such ones. The caller holds t.mu.
func (t *Table) besides(keys, model string) {
	t.counts.Beside++
	is := pages{keys, model}
	if len(t.beside) >= maxOrigins {
		is = pages{}
	}
	if t.useless(is) {
		return
	}
	counting := map[ref]standing{}
	for i := range t.byID.shards {
		for _, n := range t.byID.shards[i].slots {
			r := ref(i)<<numberBits | ref(n.number())
			if n == 0 || !t.paged(t.chunk(r)) {
				continue
			}
			if was := t.standing(t.chunk(r)); was.state == counted {
				counting[r] = was
			}
		}
	}
	t.beside[is] = struct{}{}
	for r, was := range counting {
		t.settle(r, was)
	}
}

// paged says whether a chunk is a told page of SGLang.
func (t *Table) paged(h *chunk) bool {
	if h.origin() == 0 {
		return false
	}
	s := t.origins.at(h.origin()).key.Scheme
	return s == alias.HiCache || s == alias.HiCacheMLA
}

// lacks says whether a told chunk is a page of a model that keeps more than pages.
func (t *Table) lacks(h *chunk) bool {
	if len(t.beside) == 0 || !t.paged(h) {
		return false
	}
	s := &t.origins.at(h.origin()).key
	return t.useless(pages{s.Keys, s.Model})
}

func (t *Table) useless(p pages) bool {
	_, one := t.beside[p]
	_, all := t.beside[pages{}]
	return one || all
}
