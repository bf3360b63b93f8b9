// Package keys has the API keys of clients: how a key is written, what is stored of it, and the
// keys that a router accepts now.
//
// A key is "cgn_", an id of 8 characters, "_", 32 characters of secret and 6 of a CRC-32 of all
// before. Its characters are base62, so the secret has 190 bits. Nobody chooses a key. The id is no
// secret: it names the key in files, logs and commands. Of the key only its SHA-256 is stored.
package keys

import (
	"crypto/rand"
	"crypto/sha256"
	"hash/crc32"
)

const (
	prefix      = "cgn_"
	idBytes     = 8
	secretBytes = 32
	sumBytes    = 6
	secretAt    = len(prefix) + idBytes + 1
	sumAt       = secretAt + secretBytes
	keyBytes    = sumAt + sumBytes
)

const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// digits is 1 for bytes that are base62.
var digits = func() (is [256]byte) {
	for i := range len(alphabet) {
		is[alphabet[i]] = 1
	}
	return is
}()

// Digest is the SHA-256 of a key's text.
type Digest [sha256.Size]byte

// Generate returns a new key and its id.
func Generate() (key, id string) {
	b := append(make([]byte, 0, keyBytes), prefix...)
	b = append(appendRandom(b, idBytes), '_')
	b = appendRandom(b, secretBytes)
	b = appendSum(b)
	return string(b), string(b[len(prefix) : secretAt-1])
}

// Renew returns a new key with the id of another one.
func Renew(id string) (key string) {
	b := append(append(append(make([]byte, 0, keyBytes), prefix...), id...), '_')
	return string(appendSum(appendRandom(b, secretBytes)))
}

// appendRandom appends n random characters.
func appendRandom(b []byte, n int) []byte {
	const fair = 256 / len(alphabet) * len(alphabet) // bytes from here on would favour the first characters
	var pool [64]byte
	for i := len(pool); n > 0; i++ {
		if i >= len(pool) {
			rand.Read(pool[:]) // never fails
			i = 0
		}
		if c := int(pool[i]); c < fair {
			b = append(b, alphabet[c%len(alphabet)])
			n--
		}
	}
	return b
}

// sumOf returns the CRC-32 of b in base62.
func sumOf(b []byte) (sum [sumBytes]byte) {
	for i, v := len(sum)-1, crc32.ChecksumIEEE(b); i >= 0; i, v = i-1, v/uint32(len(alphabet)) {
		sum[i] = alphabet[v%uint32(len(alphabet))]
	}
	return sum
}

func appendSum(b []byte) []byte {
	sum := sumOf(b)
	return append(b, sum[:]...)
}

// Parse returns the digest of a key, and its id. ok is false for anything that Generate cannot have
// made: a mistyped key, or one of another system. The id points into text. Parse does not allocate.
func Parse(text []byte) (sum Digest, id []byte, ok bool) {
	if len(text) != keyBytes || string(text[:len(prefix)]) != prefix || text[secretAt-1] != '_' ||
		!isBase62(text[len(prefix):secretAt-1]) || !isBase62(text[secretAt:sumAt]) {
		return sum, nil, false
	}
	if check := sumOf(text[:sumAt]); string(check[:]) != string(text[sumAt:]) {
		return sum, nil, false
	}
	return sha256.Sum256(text), text[len(prefix) : secretAt-1], true
}

func isBase62(text []byte) bool {
	is := byte(1)
	for _, c := range text {
		is &= digits[c]
	}
	return is == 1
}

// Looks says whether text begins as a key does. What looks like a key may be a secret.
func Looks[T string | []byte](text T) bool {
	return len(text) >= len(prefix) && string(text[:len(prefix)]) == prefix
}

// CheckID says whether id can be the id of a key.
func CheckID(id string) bool { return len(id) == idBytes && isBase62([]byte(id)) }
