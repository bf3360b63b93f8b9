package chunks

import (
	"errors"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/lmcache"
	"github.com/cognitora/dataplane/kv/vllmtier"
)

// parse reads the key of a part, of any scheme. The errors are those of alias.
func parse(key []byte) (alias.Key, error) {
	o, err := vllmtier.Parse(key)
	switch {
	case err == nil:
		return o.Part(), nil
	case errors.Is(err, alias.ErrForm):
		return alias.Key{}, err
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
