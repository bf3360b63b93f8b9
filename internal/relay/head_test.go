package relay

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// parseHead feeds s in pieces that end at the given offsets.
func parseHead(s string, cuts ...int) (h head, done bool, err error) {
	h.reset()
	for _, cut := range append(cuts, len(s)) {
		if done, err = h.parse([]byte(s[:cut])); done || err != nil {
			return h, done, err
		}
	}
	return h, false, nil
}

// describe formats the result of a parse for comparison.
func describe(s string, h head, done bool, err error) string {
	if err != nil || !done {
		return fmt.Sprintf("%v %v", done, err)
	}
	out := fmt.Sprintf("%d %d %v %s", h.status, h.length, h.reusable(), s[h.line:])
	for _, f := range h.fields {
		out += "|" + s[f.name:f.nameEnd] + "=" + s[f.value:f.valueEnd]
	}
	return out
}

var heads = map[string]string{
	"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nA:b\r\n\r\nrest": "200 5 true " +
		"rest|Content-Length=5|A=b",
	"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n": "200 0 true |Content-Length=0",
	"HTTP/1.1 200 \nA: \t b c \t\nEmpty:\n\n":   "200 -2 false |A=b c|Empty=",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n": "200 -1 true " +
		"|Transfer-Encoding=Chunked",
	"HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 204 No\r\nA: b\r\n\r\n": "204 -2 false |A=b",
	"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n":                         "200 5 false |Content-Length=5",
	"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 5\r\n\r\n": "200 5 true " +
		"|Connection=Keep-Alive|Content-Length=5",
	"HTTP/1.1 500 X\r\nConnection: foo, close\r\nContent-Length: 1\r\n\r\n": "500 1 false |Connection=foo, " +
		"close|Content-Length=1",
	"HTTP/1.1 200 OK\r\nA: b\r\n":           "false <nil>",
	"":                                      "false <nil>",
	"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n": "false folded header line",
	"HTTP/1.1 200 OK\r\nA b\r\n\r\n":        "false bad header line",
	"HTTP/1.1 200 OK\r\nA : b\r\n\r\n":      "false bad header line",
	"HTTP/1.1 200 OK\r\n: b\r\n\r\n":        "false bad header line",
	"HTTP/1.1 200 OK\r\nA: b\x00c\r\n\r\n":  "false bad header line",
	"HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n":    "false bad header line",
	"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n": "false conflicting " +
		"Content-Length fields",
	"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n":                "false bad Content-Length",
	"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n":                  "false bad Content-Length",
	"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n":                  "false bad Content-Length",
	"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n":                     "false bad Content-Length",
	"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999\r\n\r\n": "false bad Content-Length",
	"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n": "false both Content-Length and " +
		"Transfer-Encoding",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n": "false both Content-Length and " +
		"Transfer-Encoding",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n": "false unsupported Transfer-Encoding",
	"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n":       "false unsupported Transfer-Encoding",
	"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\n\r\n": "false unexpected 101 Switching " +
		"Protocols",
	"HTTP/2 200\r\n\r\n":           "false bad status line",
	"HTTP/1.1 2000 OK\r\n\r\n":     "false bad status line",
	"HTTP/1.1 099 OK\r\n\r\n":      "false bad status line",
	"HTTP/1.2 200 OK\r\n\r\n":      "false bad status line",
	"\r\nHTTP/1.1 200 OK\r\n\r\n":  "false bad status line",
	"SSH-2.0-OpenSSH_9.2 Debian\n": "false bad status line",
}

func TestHeadAtEverySplit(t *testing.T) {
	for s, want := range heads {
		for i := 0; i <= len(s); i++ {
			h, done, err := parseHead(s, i, min(i+3, len(s)))
			if got := describe(s, h, done, err); got != want {
				t.Fatalf("%q cut at %d: %s, want %s", s, i, got, want)
			}
		}
	}
}

func TestHeadBounds(t *testing.T) {
	const first = "HTTP/1.1 200 OK\r\n"
	for s, want := range map[string]error{
		first + strings.Repeat("A: b\r\n", maxHeaderFields+1):                    errFieldCount,
		first + "A: " + strings.Repeat("b", maxHeadBytes):                        errHeadTooLong,
		first + "A: " + strings.Repeat("b", maxHeadBytes) + "\r\n\r\n":           errHeadTooLong,
		strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", maxHeadBytes/25) + first: errHeadTooLong,
	} {
		if _, _, err := parseHead(s); !errors.Is(err, want) {
			t.Errorf("%.40q: %v, want %v", s, err, want)
		}
	}
}

func FuzzHead(f *testing.F) {
	for s := range heads {
		f.Add(s, uint16(7))
	}
	f.Fuzz(func(t *testing.T, s string, at uint16) {
		h, done, err := parseHead(s)
		want := describe(s, h, done, err)
		h, done, err = parseHead(s, int(at)%(len(s)+1))
		if got := describe(s, h, done, err); got != want {
			t.Fatalf("%q cut at %d: %s, want %s", s, at, got, want)
		}
		for _, f := range h.fields {
			if strings.ContainsAny(s[f.name:f.nameEnd]+s[f.value:f.valueEnd], "\r\n\x00") {
				t.Fatalf("%q: control bytes in a field", s)
			}
		}
	})
}
