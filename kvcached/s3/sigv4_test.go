package s3

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/kvcached/store"
)

// The signed examples of AWS's documentation ("Authenticating Requests: Using the Authorization
// Header" and its siblings).
const (
	exampleAccess = "AKIAIOSFODNN7EXAMPLE"
	exampleSecret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	exampleDate   = "20130524T000000Z"
	exampleScope  = "20130524/us-east-1/s3/aws4_request"
)

// example reads a raw request and adds the Authorization of the example.
func example(t *testing.T, raw, signed, signature string) *http.Request {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(strings.ReplaceAll(raw, "\n", "\r\n") + "\r\n\r\n")))
	if err != nil {
		t.Fatal(err)
	}
	if signed != "" {
		r.Header.Set("Authorization", fmt.Sprintf("%s Credential=%s/%s,SignedHeaders=%s,Signature=%s", algorithm,
			exampleAccess, exampleScope, signed, signature))
	}
	return r
}

// awsExamples are the requests of the documentation.
func awsExamples(t *testing.T) map[string]*http.Request {
	const x = "x-amz-content-sha256;x-amz-date"
	all := map[string]*http.Request{
		"GET object": example(t,
			"GET /test.txt HTTP/1.1\nHost: examplebucket.s3.amazonaws.com\nRange: bytes=0-9\nx-amz-content-sha256:"+
				emptySHA256+"\nx-amz-date: "+exampleDate,
			"host;range;"+x, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
		"PUT object": example(t, "PUT /test%24file.text HTTP/1.1\nHost: examplebucket.s3.amazonaws.com\nDate: Fri, "+
			"24 May 2013 00:00:00 GMT\nx-amz-date: "+exampleDate+
			"\nx-amz-storage-class: REDUCED_REDUNDANCY\nx-amz-content-sha256: "+
			"44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072\nContent-Length: 0",
			"date;host;"+x+";x-amz-storage-class", "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
		"GET bucket lifecycle": example(t,
			"GET /?lifecycle HTTP/1.1\nHost: examplebucket.s3.amazonaws.com\nx-amz-content-sha256: "+emptySHA256+
				"\nx-amz-date: "+exampleDate,
			"host;"+x, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
		"list objects": example(t,
			"GET /?max-keys=2&prefix=J HTTP/1.1\nHost: examplebucket.s3.amazonaws.com\nx-amz-content-sha256: "+
				emptySHA256+"\nx-amz-date: "+exampleDate,
			"host;"+x, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
	}
	return all
}

func exampleServer(t *testing.T) *Server {
	t.Helper()
	s, err := New(Options{Sink: arena(t, 4<<20),
		Keys: []Key{{Access: exampleAccess, Secret: exampleSecret, Tenant: "acme"}}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// at2013 runs f with a clock that stands at the examples' date plus an offset.
func at2013(t *testing.T, offset time.Duration, f func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		then, _ := time.Parse(amzTime, exampleDate)
		time.Sleep(time.Until(then.Add(offset)))
		f(t)
	})
}

func codeOf(err error) string {
	var e *apiError
	if errors.As(err, &e) {
		return e.code
	}
	return fmt.Sprint(err)
}

func TestAWSExamples(t *testing.T) {
	at2013(t, time.Minute, func(t *testing.T) {
		s := exampleServer(t)
		for name, r := range awsExamples(t) {
			q, err := parseQuery(r.URL.RawQuery)
			if err != nil {
				t.Fatal(err)
			}
			who, err := s.authenticate(r, q)
			if err != nil || who.tenant != "acme" {
				t.Errorf("%s: %+v %v", name, who, err)
			}
			r.Method = "DELETE"
			if _, err := s.authenticate(r, q); codeOf(err) != "SignatureDoesNotMatch" {
				t.Errorf("%s with another method: %v", name, err)
			}
		}
	})
}

// TestRefused checks the error code of each refused request.
func TestRefused(t *testing.T) {
	base := "GET /test.txt HTTP/1.1\nHost: examplebucket.s3.amazonaws.com\nRange: bytes=0-9\nx-amz-content-sha256:" +
		emptySHA256 + "\nx-amz-date: " + exampleDate
	const signed = "host;range;x-amz-content-sha256;x-amz-date"
	const good = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
	for _, c := range []struct {
		name, raw, signed, signature string
		after                        time.Duration
		code                         string
	}{
		{"good", base, signed, good, 14 * time.Minute, ""},
		{"clock ahead", base, signed, good, -14 * time.Minute, ""},
		{"late", base, signed, good, 16 * time.Minute, "RequestTimeTooSkewed"},
		{"early", base, signed, good, -16 * time.Minute, "RequestTimeTooSkewed"},
		{"unsigned", base, "", "", 0, "AccessDenied"},
		{"other signature", base, signed, strings.Repeat("0", 64), 0, "SignatureDoesNotMatch"},
		{"short signature", base, signed, good[1:], 0, "AuthorizationHeaderMalformed"},
		{"host not signed", base, "range;x-amz-content-sha256;x-amz-date", good, 0, "AuthorizationHeaderMalformed"},
		{"header put in", base + "\nx-amz-meta-evil: 1", signed, good, 0, "AccessDenied"},
		{"range changed", strings.Replace(base, "0-9", "0-8", 1), signed, good, 0, "SignatureDoesNotMatch"},
		{"path changed", strings.Replace(base, "test.txt", "test.tx", 1), signed, good, 0, "SignatureDoesNotMatch"},
		{"query added", strings.Replace(base, "test.txt", "test.txt?uploads", 1), signed, good, 0, "SignatureDoesNotMatch"},
		{"no payload hash", strings.Replace(base, "x-amz-content-sha256", "y", 1), signed, good, 0, "InvalidRequest"},
		{"other day", strings.Replace(base, "20130524T", "20130523T", 1), signed, good, 0, "SignatureDoesNotMatch"},
		{"no date", strings.Replace(base, "x-amz-date", "y", 1), signed, good, 0, "AccessDenied"},
		{"presigned", strings.Replace(base, "test.txt", "test.txt?X-Amz-Signature="+good, 1), "", "", 0, "AccessDenied"},
	} {
		t.Run(c.name, func(t *testing.T) {
			at2013(t, c.after, func(t *testing.T) {
				s := exampleServer(t)
				r := example(t, c.raw, c.signed, c.signature)
				q, _ := parseQuery(r.URL.RawQuery)
				_, err := s.authenticate(r, q)
				if c.code == "" && err != nil || c.code != "" && codeOf(err) != c.code {
					t.Errorf("%v, want %s", err, c.code)
				}
				if err != nil && strings.Contains(err.Error(), exampleSecret) {
					t.Error("the secret is in the error")
				}
			})
		})
	}
}

// The chunked examples of "Signature Calculations ... Transferring Payload in Multiple Chunks",
// without and with trailers.
var chunkedExamples = []struct {
	name, payload, seed, signed string
	header                      string
	signatures                  [3]string
	trailer                     string
}{
	{
		"signed", streamingSigned, "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
		"content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class", "Content-Length: 66824",
		[3]string{"ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
			"0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
			"b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"}, "",
	},
	{
		"signed with trailer", streamingSigned + trailerSuffix,
		"106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
		"content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class;x-amz-trailer", "x-amz-trailer: x-amz-checksum-crc32c",
		[3]string{"b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
			"1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
			"2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992"},
		"x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n",
	},
}

func TestAWSChunkedExamples(t *testing.T) {
	for _, c := range chunkedExamples {
		t.Run(c.name, func(t *testing.T) {
			at2013(t, 0, func(t *testing.T) {
				r := example(t, "PUT /examplebucket/chunkObject.txt HTTP/1.1\nHost: s3.amazonaws.com\nx-amz-date: "+
					exampleDate+"\nx-amz-storage-class: REDUCED_REDUNDANCY\nx-amz-content-sha256: "+
					c.payload+"\nContent-Encoding: aws-chunked\nx-amz-decoded-content-length: 66560\n"+c.header,
					c.signed, c.seed)
				body := chunkedBody(c.signatures, c.trailer)
				r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
				s, err := New(Options{Sink: arena(t, 4<<20), Domains: []string{"s3.amazonaws.com"},
					Keys: []Key{{Access: exampleAccess, Secret: exampleSecret}}})
				if err != nil {
					t.Fatal(err)
				}
				w := httptest.NewRecorder()
				s.ServeHTTP(w, r)
				if w.Code != http.StatusOK {
					t.Fatal(w.Code, w.Body)
				}
				b, err := s.sink.Get(t.Context(), mustItem(t, "examplebucket", "chunkObject.txt").Addr)
				if err != nil || !bytes.Equal(b.Bytes(), bytes.Repeat([]byte("a"), 66560)) {
					t.Error(err, "other bytes arrived")
				}
				b.Release()
			})
		})
	}
}

func chunkedBody(signatures [3]string, trailer string) string {
	chunk := func(n int, signature string) string {
		text := fmt.Sprintf("%x;chunk-signature=%s\r\n%s", n, signature, strings.Repeat("a", n))
		if n > 0 {
			text += "\r\n"
		}
		return text
	}
	return chunk(65536, signatures[0]) + chunk(1024, signatures[1]) + chunk(0, signatures[2]) + trailer + "\r\n"
}

func mustItem(t *testing.T, bucket, key string) store.Item {
	t.Helper()
	it, err := itemOf(bucket, key, "")
	if err != nil {
		t.Fatal(err)
	}
	return it
}

// TestChunkTampered changes one thing of the examples' bodies at a time: nothing is committed.
func TestChunkTampered(t *testing.T) {
	at2013(t, 0, func(t *testing.T) {
		key := signingKey(exampleSecret, credential{exampleAccess, "20130524", "us-east-1", "s3"})
		for _, c := range chunkedExamples {
			body := chunkedBody(c.signatures, c.trailer)
			for _, change := range []func(string) string{
				func(b string) string { return strings.Replace(b, "aaa", "aab", 1) },
				func(b string) string { return strings.Replace(b, "400;chunk", "3ff;chunk", 1) },
				func(b string) string { return strings.Replace(b, ";chunk-signature="+c.signatures[1], "", 1) },
				func(b string) string { return strings.Replace(b, c.signatures[2], c.signatures[1], 1) },
				func(b string) string { return b[:len(b)-100] },
				func(b string) string { return strings.Replace(b, "sOO8/Q==", "sOO8/A==", 1) + c.trailer },
				func(b string) string { return strings.Replace(b, c.trailer, "", 1) + c.header[:1] },
			} {
				changed := change(body)
				if changed == body || c.trailer == "" && strings.HasPrefix(changed, body) ||
					c.trailer == "" && changed == body+"C" {
					continue
				}
				d := newChunked(strings.NewReader(changed), 66560,
					&chain{key: key, amzDate: exampleDate, scope: exampleScope, last: c.seed}, c.trailer != "")
				_, err := io.Copy(io.Discard, struct{ io.Reader }{d})
				if err == nil {
					err = d.finish()
				}
				if err == nil {
					t.Errorf("%s: a changed body went through", c.name)
				}
			}
		}
	})
}

func TestKeysHideTheirSecrets(t *testing.T) {
	if text := fmt.Sprintf("%v %+v %#v", Key{Access: "a", Secret: "hush"}, Key{Secret: "hush"},
		Key{Secret: "hush"}); strings.Contains(text, "hush") {
		t.Error("a key prints its secret:", text)
	}
}
