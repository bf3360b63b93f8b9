package oidc

import (
	"crypto/sha256"
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/router/trust"
)

// digest is the SHA-256 of a token.
type digest [sha256.Size]byte

// verdict is what a check has found out about one token. A verdict does not change.
type verdict struct {
	of         digest
	generation uint64 // of the keys that it was checked with
	until      time.Time
	who        *trust.Principal // nil: refused
	why        Refusal
}

// ways is the number of verdicts that a token's place has room for.
const ways = 4

// cache has the latest verdicts. It takes no lock: a place is a pointer that is replaced. When all
// four places of a token are taken, its verdict replaces one of them, preferably one that is over.
type cache struct {
	places []atomic.Pointer[verdict] // sets of ways
}

// newCache makes a cache for this many verdicts, a multiple of ways.
func newCache(size int) *cache { return &cache{make([]atomic.Pointer[verdict], size)} }

// set returns the places of a token.
func (c *cache) set(of *digest) []atomic.Pointer[verdict] {
	at := binary.LittleEndian.Uint64(of[:]) % uint64(len(c.places)/ways) * ways
	return c.places[at : at+ways]
}

// get returns the verdict on a token by keys of this generation, or nil.
func (c *cache) get(of *digest, generation uint64, now time.Time) *verdict {
	set := c.set(of)
	for i := range set {
		if v := set[i].Load(); v != nil && v.of == *of && v.generation == generation && now.Before(v.until) {
			return v
		}
	}
	return nil
}

// put adds a verdict.
func (c *cache) put(v *verdict, now time.Time) {
	set := c.set(&v.of)
	at := int(v.of[8]) % ways
	for i := range set {
		was := set[i].Load()
		if was == nil || was.of == v.of || was.generation != v.generation || !now.Before(was.until) {
			at = i
			break
		}
	}
	set[at].Store(v)
}
