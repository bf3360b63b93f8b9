package s3

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// FuzzChunked reads any body as aws-chunked. The payload is never longer than announced, and does
// not depend on how the body is cut.
func FuzzChunked(f *testing.F) {
	f.Add([]byte("5\r\nhello\r\n0\r\n\r\n"), int64(5), true)
	f.Add([]byte("5;chunk-signature=x\r\nhello\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"), int64(5), true)
	f.Fuzz(func(t *testing.T, body []byte, length int64, trailing bool) {
		if length < 0 || length > 1<<12 {
			return
		}
		read := func(from io.Reader) ([]byte, error) {
			d := newChunked(from, length, nil, trailing)
			into := make([]byte, length)
			if _, err := io.ReadFull(d, into); err != nil {
				return nil, err
			}
			return into, d.finish()
		}
		whole, err := read(bytes.NewReader(body))
		again, errAgain := read(&slow{body})
		if (err == nil) != (errAgain == nil) || err == nil && !bytes.Equal(whole, again) {
			t.Errorf("at once: %v, byte by byte: %v", err, errAgain)
		}
	})
}

// slow gives one byte at a time.
type slow struct{ rest []byte }

func (s *slow) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(1, len(p))], s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// FuzzAuthorization reads any header. An accepted header can be written again.
func FuzzAuthorization(f *testing.F) {
	f.Add("AWS4-HMAC-SHA256 Credential=AKIA/20130524/us-east-1/s3/aws4_request,SignedHeaders=host;range,Signature=" +
		strings.Repeat("0a", 32))
	f.Add("AWS4-HMAC-SHA256 Credential=a/b/20130524//s3/aws4_request, SignedHeaders=host, Signature=" +
		strings.Repeat("f", 64))
	f.Fuzz(func(t *testing.T, header string) {
		a, err := parseAuthorization(header)
		if err != nil {
			return
		}
		text := algorithm + " Credential=" + a.accessKey + "/" + a.scope() + ", SignedHeaders=" + strings.Join(a.signed,
			";") + ", Signature=" + a.signature
		b, err := parseAuthorization(text)
		if err != nil || b.credential != a.credential || b.signature != a.signature {
			t.Errorf("%q is not %q: %v", header, text, err)
		}
	})
}

// FuzzCanonical makes canonical requests of any input and checks a signature over them.
func FuzzCanonical(f *testing.F) {
	f.Add("GET", "/a%20b", "list-type=2&prefix=a+b&x", "host;x-amz-date", " a  b ")
	f.Fuzz(func(t *testing.T, method, path, raw, signed, value string) {
		q, err := parseQuery(raw)
		if err != nil {
			return
		}
		if _, ok := parseSigned(signed); !ok {
			return
		}
		r := &http.Request{Method: method, Host: value, Header: http.Header{"X-Amz-Date": {value}}, ContentLength: -1}
		text := canonicalRequest(r, path, q, strings.Split(signed, ";"), unsignedPayload)
		if !bytes.HasSuffix(text, []byte("\n"+signed+"\n"+unsignedPayload)) {
			t.Errorf("%q", text)
		}
		encoded := string(appendCanonicalQuery(nil, q))
		again, err := parseQuery(encoded)
		if err != nil || string(appendCanonicalQuery(nil, again)) != encoded {
			t.Errorf("%q: the canonical query %q is not canonical", raw, encoded)
		}
	})
}

// FuzzRange reads any Range header for any length. The answered part lies within the object.
func FuzzRange(f *testing.F) {
	f.Add("bytes=0-8388607", 100)
	f.Add("bytes=-5", 3)
	f.Add("bytes=9223372036854775807-", 1)
	f.Fuzz(func(t *testing.T, header string, length int) {
		if length < 0 || length > MaxObject {
			return
		}
		s, err := parseRange(header, length)
		if err != nil {
			return
		}
		if s.at < 0 || s.n < 0 || s.at+s.n > length || s.partial && s.n == 0 || !s.partial && s.n != length {
			t.Errorf("%q of %d is %+v", header, length, s)
		}
	})
}

// FuzzLocate finds bucket and key of any Host and path.
func FuzzLocate(f *testing.F) {
	f.Add("kvb.localhost:15001", "/acc%401")
	f.Add("[::1]", "/b/k")
	f.Fuzz(func(t *testing.T, host, path string) {
		g, err := locate(host, path, []string{"kv.example.com"})
		if err == nil && g.key != "" &&
			(g.bucket == "" || strings.Contains(g.bucket, "/") && !strings.Contains(host, "/")) {
			t.Errorf("%q %q is %+v", host, path, g)
		}
	})
}

// FuzzAttributes reads any bytes that a sink may hold.
func FuzzAttributes(f *testing.F) {
	f.Add(attributes{modified: time.UnixMilli(7), parts: 3,
		headers: [][2]string{{"Content-Type", "a/b"}}}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		a := decodeAttributes(b)
		if a.modified.IsZero() {
			return
		}
		again := decodeAttributes(a.encode())
		if len(again.headers) != len(a.headers) || !again.modified.Equal(a.modified) {
			t.Errorf("%+v is %+v", a, again)
		}
	})
}

// FuzzRequest serves any request, with and without keys. The answer is never an InternalError, and
// nothing stays in use.
func FuzzRequest(f *testing.F) {
	f.Add([]byte("PUT /b/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"), false)
	f.Add([]byte("POST /b/k?uploads HTTP/1.1\r\nHost: localhost\r\n\r\n"), false)
	f.Add([]byte("POST /b?delete HTTP/1.1\r\nHost: localhost\r\nContent-Length: "+
		"53\r\n\r\n<Delete><Object><Key>k</Key></Object></Delete>       "), false)
	f.Add([]byte("GET /?list-type=2&delimiter=/&max-keys=1&continuation-token=YQ HTTP/1.1\r\nHost: "+
		"b.localhost\r\n\r\n"), false)
	f.Add([]byte("PUT /b/k HTTP/1.1\r\nHost: localhost\r\nX-Amz-Content-Sha256: "+
		"STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\nX-Amz-Trailer: x-amz-checksum-crc32\r\n"+
		"X-Amz-Decoded-Content-Length: 5\r\nContent-Length: "+
		"30\r\n\r\n5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n"), false)
	f.Add([]byte("GET /b/k HTTP/1.1\r\nHost: localhost\r\nAuthorization: AWS4-HMAC-SHA256 "+
		"Credential=a/20130524/r/s3/aws4_request,SignedHeaders=host,Signature="+
		strings.Repeat("0", 64)+"\r\n\r\n"), true)
	sink := arena(f, 4<<20)
	f.Fuzz(func(t *testing.T, raw []byte, keys bool) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			return
		}
		o := Options{Sink: sink, Logger: slog.New(slog.DiscardHandler)}
		if keys {
			o.Keys = []Key{{Access: "a", Secret: "b"}}
		}
		s, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		s.Close()
		if w.Code == http.StatusInternalServerError || keys && w.Code < 300 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if held := sink.Stats().RAM.Held; held != 0 {
			t.Errorf("%d bytes are left", held)
		}
	})
}
