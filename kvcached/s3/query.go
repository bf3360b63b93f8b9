package s3

import (
	"net/url"
	"strconv"
	"strings"
)

// maxParameters is how many parameters a query may have.
const maxParameters = 64

// parameter is one of a query, decoded.
type parameter struct{ name, value string }

// query is a request's query in the order it came.
type query []parameter

// parseQuery reads the raw query of a URL.
func parseQuery(raw string) (query, error) {
	var q query
	for raw != "" {
		var part string
		part, raw, _ = strings.Cut(raw, "&")
		if part == "" {
			continue
		}
		if len(q) == maxParameters {
			return nil, refusal("InvalidArgument", "The query has more than %d parameters.", maxParameters)
		}
		name, value, _ := strings.Cut(part, "=")
		n, err := url.QueryUnescape(name)
		if err != nil {
			return nil, refusal("InvalidArgument", "A name in the query is not URL-encoded.")
		}
		v, err := url.QueryUnescape(value)
		if err != nil {
			return nil, refusal("InvalidArgument", "The parameter %q is not URL-encoded.", n)
		}
		q = append(q, parameter{n, v})
	}
	return q, nil
}

func (q query) has(name string) bool {
	_, ok := q.find(name)
	return ok
}

func (q query) get(name string) string {
	v, _ := q.find(name)
	return v
}

func (q query) find(name string) (string, bool) {
	for _, p := range q {
		if p.name == name {
			return p.value, true
		}
	}
	return "", false
}

// number reads a parameter that must lie in [low, high]. An absent one is missing.
func (q query) number(name string, low, high, missing int) (int, error) {
	text, ok := q.find(name)
	if !ok {
		return missing, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		return 0, refusal("InvalidArgument", "The parameter %s must be a number from %d to %d.", name, low, high)
	}
	return n, nil
}

const upperHex = "0123456789ABCDEF"

// appendEncoded appends s in SigV4's URL encoding. All bytes except letters, digits, -._~ and a
// kept / become %XX.
func appendEncoded(b []byte, s string, keepSlash bool) []byte {
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '.', c == '_', c == '~',
			c == '/' && keepSlash:
			b = append(b, c)
		default:
			b = append(b, '%', upperHex[c>>4], upperHex[c&15])
		}
	}
	return b
}
