package chunks

import (
	"errors"
	"hash/maphash"
	"slices"

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

// beside are SGLang's models that keep more than pages, by the namespace of their keys and the hash
// of the model's name.
type beside map[string]map[uint64]struct{}

// has says whether a model's pages do not count: it keeps more, or too many models of its namespace
// do.
func (b beside) has(keys string, model uint64) bool {
	of := b[keys]
	_, one := of[model]
	return one || len(of) >= maxBeside
}

// addBeside notes that a model keeps more than pages. Its pages do not count until the namespace of
// its keys is forgotten (forgetBeside), or the daemon ends. Of a namespace with maxBeside such
// models no pages count. The caller holds t.mu.
func (t *Table) addBeside(keys, model string) {
	t.counts.Beside++
	hash := maphash.String(t.seed, model)
	if t.beside.has(keys, hash) {
		return
	}
	of := t.beside[keys]
	if of == nil {
		if len(t.beside) >= maxOrigins && !t.forgetBeside() {
			return
		}
		of = map[uint64]struct{}{}
	}
	counting := t.countingPages(keys, model, len(of)+1 >= maxBeside)
	of[hash] = struct{}{}
	t.beside[keys] = of
	for r, was := range counting {
		t.settle(r, was)
	}
}

// forgetBeside makes room for a namespace in t.beside, in place of one without told pages.
func (t *Table) forgetBeside() bool {
	told := map[string]bool{}
	for i := range t.origins.list {
		if s := &t.origins.list[i].key; ofPages(s.Scheme) {
			told[s.Keys] = true
		}
	}
	for keys := range t.beside {
		if !told[keys] {
			delete(t.beside, keys)
			return true
		}
	}
	return false
}

// countingPages returns how the pages of a namespace stand that count, of one model or of all. It
// looks for them only if there are told ones.
func (t *Table) countingPages(keys, model string, all bool) map[ref]standing {
	from, some := make([]bool, len(t.origins.list)), false
	for i := range t.origins.list {
		s := &t.origins.list[i].key
		from[i] = ofPages(s.Scheme) && s.Keys == keys && (all || s.Model == model)
		some = some || from[i]
	}
	if !some {
		return nil
	}
	counting := map[ref]standing{}
	for i := range t.byID.shards {
		for _, n := range t.byID.shards[i].slots {
			r := ref(i)<<numberBits | ref(n.number())
			if n == 0 || !from[t.chunk(r).origin()] {
				continue
			}
			if was := t.standing(t.chunk(r)); was.state == counted {
				counting[r] = was
			}
		}
	}
	return counting
}

// knowsPage says whether an object that may be beside pages is one itself: it has a note, or pages
// of the key's model are told.
func (t *Table) knowsPage(c *Change, k *alias.Key) bool {
	_, _, noted := alias.CutNote(c.Attr)
	return noted || slices.ContainsFunc(t.origins.list, func(o held[origin, space]) bool {
		return o.key.Scheme == k.Scheme && o.key.Keys == c.Namespace && o.key.Model == k.Model
	})
}

func ofPages(s alias.Scheme) bool { return s == alias.HiCache || s == alias.HiCacheMLA }

// hasBeside says whether chunks of a source are pages of a model that keeps more than pages.
func (t *Table) hasBeside(s *alias.Source) bool {
	return len(t.beside) > 0 && ofPages(s.Scheme) && t.beside.has(s.Keys, maphash.String(t.seed, s.Model))
}
