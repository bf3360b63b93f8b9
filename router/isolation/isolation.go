// Package isolation keeps clients from learning, by the time of an answer, what others have asked.
// Each tenant or each key has a salt. The salt goes into the digests of a prompt's blocks and into
// the request to the engine, so that nobody finds the cached blocks of another.
//
// A salt is an HMAC-SHA256 with a secret of the fleet, so that nobody can compute the salt or the
// digests of another. A client's own cache_salt is part of the HMAC's input. So a client can divide
// its own cache further, but can never have another one's salt.
package isolation

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"sync"

	"github.com/cognitora/dataplane/router/trust"
)

// By says who shares cached prompts.
type By uint8

// These are the values of By.
const (
	None   By = iota // all clients
	Tenant           // the keys of one tenant
	Key              // nobody; each key has its own
)

// ParseBy returns the By with a name: none, tenant or key.
func ParseBy(name string) (By, error) {
	for by, known := range [...]string{"none", "tenant", "key"} {
		if name == known {
			return By(by), nil
		}
	}
	return None, fmt.Errorf("%q is no isolation; use none, tenant or key", name)
}

// SecretBytes is the least length of a secret.
const SecretBytes = 32

// saltBytes is the length of a salt's binary form. 128 bits cannot be guessed, and no two clients
// have the same by chance.
const saltBytes = 16

// Salt is a salt as the engines get it: lower-case hexadecimal digits.
type Salt [2 * saltBytes]byte

// Salts makes the salts of clients. A Salts is safe for concurrent use.
type Salts struct {
	by   By
	macs sync.Pool // of *mac
}

// mac is an HMAC with memory for its input and output.
type mac struct {
	hash.Hash
	in, out []byte
}

// New returns the salts of a fleet with a secret, or nil for None.
func New(by By, secret []byte) *Salts {
	if by == None {
		return nil
	}
	secret = append([]byte(nil), secret...)
	s := &Salts{by: by}
	s.macs.New = func() any { return &mac{Hash: hmac.New(sha256.New, secret)} }
	return s
}

// domain keeps these HMACs apart from others with the same secret.
const domain = "cognitora.salt.v1"

// Of returns the salt of a client's request with a cache_salt of its own; nil: it has none. Of does
// not allocate.
func (s *Salts) Of(who *trust.Principal, own []byte) (salt Salt) {
	m := s.macs.Get().(*mac)
	defer s.macs.Put(m)
	m.in = appendText(append(m.in[:0], domain...), who.Tenant)
	if s.by == Key {
		m.in = appendText(append(m.in, 'k'), who.ID)
	}
	if own != nil {
		m.in = append(append(m.in, 's'), own...)
	}
	m.Reset()
	m.Write(m.in)
	m.out = m.Sum(m.out[:0])
	hex.Encode(salt[:], m.out[:saltBytes])
	if cap(m.in) > keptInput {
		m.in = nil
	}
	return salt
}

// keptInput is the largest memory for an input, in bytes, that is kept.
const keptInput = 4 << 10

// appendText appends a text and its length, so that no two lists of texts become the same bytes.
func appendText[T string | []byte](b []byte, text T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}
