package s3

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

const (
	algorithm     = "AWS4-HMAC-SHA256"
	scopeEnd      = "aws4_request"
	signedService = "s3"
	amzTime       = "20060102T150405Z"
	emptySHA256   = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// canonicalRequest is the text that SigV4 signs. path is used as it is.
func canonicalRequest(r *http.Request, path string, q query, signed []string, payload string) []byte {
	b := make([]byte, 0, 1024)
	b = append(append(b, r.Method...), '\n')
	b = append(append(b, path...), '\n')
	b = append(appendCanonicalQuery(b, q), '\n')
	for _, name := range signed {
		b = append(append(b, name...), ':')
		b = append(appendCanonicalHeader(b, r, name), '\n')
	}
	b = append(b, '\n')
	b = append(append(b, strings.Join(signed, ";")...), '\n')
	return append(b, payload...)
}

// appendCanonicalQuery appends the parameters, encoded and sorted.
func appendCanonicalQuery(b []byte, q query) []byte {
	var pairs []string
	for _, p := range q {
		pair := appendEncoded(nil, p.name, false)
		pair = append(pair, '=')
		pairs = append(pairs, string(appendEncoded(pair, p.value, false)))
	}
	// "=" sorts before every byte of an encoded name but "-" and ".", so names are compared on
	// their own.
	slices.SortFunc(pairs, func(x, y string) int {
		xn, xv, _ := strings.Cut(x, "=")
		yn, yv, _ := strings.Cut(y, "=")
		if c := strings.Compare(xn, yn); c != 0 {
			return c
		}
		return strings.Compare(xv, yv)
	})
	return append(b, strings.Join(pairs, "&")...)
}

// appendCanonicalHeader appends the values of a header with commas between. Values are trimmed, and
// runs of blanks become one.
func appendCanonicalHeader(b []byte, r *http.Request, name string) []byte {
	values := r.Header.Values(name)
	switch {
	case name == "host":
		values = []string{r.Host}
	case name == "content-length" && len(values) == 0 && r.ContentLength >= 0:
		values = []string{strconv.FormatInt(r.ContentLength, 10)}
	case name == "transfer-encoding":
		values = r.TransferEncoding
	}
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		for j, word := range strings.Fields(v) {
			if j > 0 {
				b = append(b, ' ')
			}
			b = append(b, word...)
		}
	}
	return b
}

// stringToSign is the text that the key signs for a canonical request.
func stringToSign(amzDate string, c credential, canonical []byte) []byte {
	sum := sha256.Sum256(canonical)
	b := make([]byte, 0, 192)
	b = append(append(b, algorithm...), '\n')
	b = append(append(b, amzDate...), '\n')
	b = append(append(b, c.scope()...), '\n')
	return hex.AppendEncode(b, sum[:])
}

// signingKey is derived from a secret for one day, region and service.
func signingKey(secret string, c credential) []byte {
	k := mac([]byte("AWS4"+secret), []byte(c.date))
	k = mac(k, []byte(c.region))
	k = mac(k, []byte(c.service))
	return mac(k, []byte(scopeEnd))
}

func mac(key, text []byte) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write(text)
	return h.Sum(nil)
}

// signatureOf is the signature of text, in hex.
func signatureOf(key, text []byte) string { return hex.EncodeToString(mac(key, text)) }

// equalSignature compares in constant time.
func equalSignature(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }
