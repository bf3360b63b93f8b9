package oidc

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/go-jose/go-jose/v4"
)

// signed are the algorithms that the settings may name. HMAC is not among them: anybody could sign
// with the provider's public key.
var signed = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512,
	jose.EdDSA,
}

// Algorithms returns the names of all algorithms that can be allowed.
func Algorithms() (names []string) {
	for _, a := range signed {
		names = append(names, string(a))
	}
	return names
}

// keyName names a key for one algorithm. No key counts for an algorithm that is not its own.
type keyName struct {
	id  string
	alg jose.SignatureAlgorithm
}

// keySet is the provider's keys at one time. It does not change.
type keySet struct {
	keys       map[keyName]crypto.PublicKey
	generation uint64 // grows with each change
}

// same says whether both sets have the same keys under the same names.
func (s *keySet) same(keys map[keyName]crypto.PublicKey) bool {
	return maps.EqualFunc(s.keys, keys, func(a, b crypto.PublicKey) bool {
		known, ok := a.(interface{ Equal(crypto.PublicKey) bool })
		return ok && known.Equal(b)
	})
}

const (
	maxKeys    = 256  // of a set; a longer one is refused
	minModulus = 2048 // bits of an RSA key; shorter keys do not count
)

// parseKeys returns the keys of a JWK Set that can check tokens. A key counts if it has an id, is
// public, is meant for signatures and fits one of the allowed algorithms. Of two keys with the same
// name the first one counts.
func parseKeys(doc []byte, allowed []jose.SignatureAlgorithm) (map[keyName]crypto.PublicKey, error) {
	var set struct{ Keys []json.RawMessage }
	if err := json.Unmarshal(doc, &set); err != nil {
		return nil, fmt.Errorf("it is no JWK Set: %w", err)
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("it has %d keys; at most %d are allowed", len(set.Keys), maxKeys)
	}
	keys := map[keyName]crypto.PublicKey{}
	for _, raw := range set.Keys {
		var k jose.JSONWebKey
		if k.UnmarshalJSON(raw) != nil || k.KeyID == "" || k.Use != "" && k.Use != "sig" {
			continue
		}
		for _, alg := range fitting(k.Key) {
			name := keyName{k.KeyID, alg}
			if _, twice := keys[name]; twice || k.Algorithm != "" && k.Algorithm != string(alg) ||
				!slices.Contains(allowed, alg) {
				continue
			}
			keys[name] = k.Key
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("it has no key with a kid for the algorithms of auth.oidc.algorithms")
	}
	return keys, nil
}

// fitting returns the algorithms of a public key; none for other keys.
func fitting(key any) []jose.SignatureAlgorithm {
	switch k := key.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() >= minModulus {
			return signed[:6]
		}
	case *ecdsa.PublicKey:
		switch k.Curve.Params().BitSize {
		case 256:
			return []jose.SignatureAlgorithm{jose.ES256}
		case 384:
			return []jose.SignatureAlgorithm{jose.ES384}
		case 521:
			return []jose.SignatureAlgorithm{jose.ES512}
		}
	case ed25519.PublicKey:
		return []jose.SignatureAlgorithm{jose.EdDSA}
	}
	return nil
}
