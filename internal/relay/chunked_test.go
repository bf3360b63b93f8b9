package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http/httputil"
	"strings"
	"testing"
)

// decodeChunked decodes s in pieces that end at the given offsets.
func decodeChunked(s string, cuts ...int) (body, rest string, done bool, err error) {
	var d chunked
	last := 0
	for _, cut := range append(cuts, len(s)) {
		p := []byte(s[last:cut])
		n, used, err := d.decode(p)
		body += string(p[:n])
		if err != nil || d.done() {
			return body, s[last+used:], d.done(), err
		}
		if used != len(p) {
			return body, "", false, errors.New("input left over")
		}
		last = cut
	}
	return body, "", false, nil
}

var chunkedBodies = map[string]string{
	"5\r\nhello\r\n0\r\n\r\n":                         "hello||true",
	"5\r\nhello\r\n0\r\n\r\nmore":                     "hello|more|true",
	"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n":                "hello||true",
	"5\nhello\n0\n\n":                                 "hello||true",
	"5;a=b;c=\"d\"\r\nhello\r\n0;x\r\n\r\n":           "hello||true",
	"5  \r\nhello\r\n0 \r\n\r\n":                      "hello||true",
	"0005\r\nhello\r\n000\r\nA: b\r\nC: d\r\n\r\nx":   "hello|x|true",
	"a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n": "01234567890123456789||true",
	"5\r\nhel":                   "hel||false",
	"5\r\nhello\r\n0\r\n":        "hello||false",
	"":                           "||false",
	"5\r\nhello0\r\n\r\n":        "hello|0\r\n\r\n|false chunk not followed by a line end",
	"5\rxhello":                  "|xhello|false bad chunk size",
	"\r\n":                       "|\r\n|false bad chunk size",
	";x\r\n":                     "|;x\r\n|false bad chunk size",
	"-1\r\n":                     "|-1\r\n|false bad chunk size",
	"0x5\r\nhello":               "|x5\r\nhello|false bad chunk size",
	"00000000000000005\r\nhello": "|5\r\nhello|false bad chunk size",
}

func TestChunkedAtEverySplit(t *testing.T) {
	for s, want := range chunkedBodies {
		for i := 0; i <= len(s); i++ {
			for j := i; j <= len(s); j++ {
				body, rest, done, err := decodeChunked(s, i, j)
				got := fmt.Sprintf("%s|%s|%v", body, rest, done)
				if err != nil {
					got += " " + err.Error()
				}
				if got != want {
					t.Fatalf("%q cut at %d and %d: %s, want %s", s, i, j, got, want)
				}
			}
		}
	}
}

func TestChunkedBounds(t *testing.T) {
	for s, want := range map[string]error{
		"ffffffffffffffff\r\n":                                    errChunkSize,
		"5;" + strings.Repeat("x", maxChunkLine) + "\r\n":         errChunkLine,
		"0\r\n" + strings.Repeat("A: b\r\n", maxTrailerBytes/6+1): errTrailerBytes,
		"0\r\nA: " + strings.Repeat("b", maxTrailerBytes):         errTrailerBytes,
	} {
		if _, _, _, err := decodeChunked(s); !errors.Is(err, want) {
			t.Errorf("%.40q: %v, want %v", s, err, want)
		}
	}
}

func FuzzChunked(f *testing.F) {
	for s := range chunkedBodies {
		f.Add(s, uint16(3), uint16(5))
	}
	f.Fuzz(func(t *testing.T, s string, a, b uint16) {
		i := int(a) % (len(s) + 1)
		j := i + int(b)%(len(s)-i+1)
		body, rest, done, err := decodeChunked(s)
		body2, rest2, done2, err2 := decodeChunked(s, i, j)
		if body != body2 || rest != rest2 || done != done2 || err != err2 {
			t.Fatalf("%q cut at %d and %d: %q %q %v %v, want %q %q %v %v", s, i, j, body2, rest2, done2, err2, body,
				rest, done, err)
		}
		if done && len(body) > len(s) {
			t.Fatal("more came out than went in")
		}
	})
}

// FuzzChunkedRoundTrip decodes bytes that the standard library has encoded.
func FuzzChunkedRoundTrip(f *testing.F) {
	f.Add([]byte("hello, world"), uint8(3), uint16(9))
	f.Fuzz(func(t *testing.T, body []byte, size uint8, at uint16) {
		var wire bytes.Buffer
		w := httputil.NewChunkedWriter(&wire)
		for rest := body; len(rest) > 0; {
			n := min(int(size)+1, len(rest))
			w.Write(rest[:n])
			rest = rest[n:]
		}
		w.Close()
		io.WriteString(&wire, "\r\n")
		got, rest, done, err := decodeChunked(wire.String(), int(at)%(wire.Len()+1))
		if got != string(body) || rest != "" || !done || err != nil {
			t.Fatalf("%q %q %v %v", got, rest, done, err)
		}
	})
}
