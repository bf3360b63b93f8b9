package s3

import (
	"crypto/md5"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

func TestObject(t *testing.T) {
	b := serve(t, Options{})
	put := b.want(b.do("PUT", "/a%2Fb", "hello world", "Content-Type", "text/x", "x-amz-meta-Who", "me",
		"Content-Encoding", "zstd,aws-chunked", "Expires", "never"), 200)
	tag := put.Header.Get("ETag")
	get := b.want(b.do("GET", "/a/b", ""), 200, "hello world")
	for name, want := range map[string]string{"ETag": tag, "Content-Type": "text/x", "x-amz-meta-who": "me",
		"Content-Encoding": "zstd", "Expires": "never", "Content-Length": "11", "Accept-Ranges": "bytes"} {
		if got := get.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	head := b.want(b.do("HEAD", "/a/b", ""), 200)
	if head.body != "" || head.ContentLength != 11 || head.Header.Get("ETag") != tag {
		t.Errorf("HEAD: %+v", head)
	}
	if modified, err := http.ParseTime(head.Header.Get("Last-Modified")); err != nil ||
		time.Since(modified) > time.Minute {
		t.Error("Last-Modified", modified, err)
	}
	again := b.want(b.do("PUT", "/a/b", "hello there"), 200)
	if again.Header.Get("ETag") == tag {
		t.Error("other bytes have the same ETag")
	}
	b.want(b.do("GET", "/a/b", ""), 200, "hello there")
	b.want(b.do("DELETE", "/a/b", ""), 204)
	b.want(b.do("DELETE", "/a/b", ""), 204)
	b.want(b.do("GET", "/a/b", ""), 404, "<Code>NoSuchKey</Code>", "<Resource>/a/b</Resource>", "<RequestId>")
	if miss := b.want(b.do("HEAD", "/a/b", ""), 404); miss.body != "" || miss.ContentLength != 0 {
		t.Error("a miss of HEAD has a body")
	}
	st := b.server.Stats()
	if st.Puts != 2 || st.Hits != 3 || st.Misses != 2 || st.Deletes != 1 || st.BytesIn != 22 || st.BytesOut != 22 ||
		st.Bodies != 0 {
		t.Errorf("%+v", st)
	}
}

func TestAddressing(t *testing.T) {
	for _, c := range []struct{ host, path, bucket, key string }{
		{"kvb.localhost:15001", "/acc-6%401%400", "kvb", "acc-6@1@0"},
		{"kvb.localhost", "/", "kvb", ""},
		{"localhost:9000", "/bucket/a/b", "bucket", "a/b"},
		{"localhost:9000", "/", "", ""},
		{"localhost:9000", "/bucket", "bucket", ""},
		{"localhost:9000", "/bucket/", "bucket", ""},
		{"127.0.0.1:9000", "/model%401%400%40abc", "default", "model@1@0@abc"},
		{"gpu1:9000", "/meta%2FLlama%401", "default", "meta/Llama@1"},
		{"kv.example.com", "/model@1", "default", "model@1"},
		{"gpu1.example:9411", "/model@1", "", "InvalidBucketName"},
		{"gpu1.example:9411", "/mybkt", "mybkt", ""},
		{"gpu1.example:9411", "/mybkt/k", "mybkt", "k"},
		{"gpu1.example:9411", "/", "", ""},
		{"127.0.0.1", "/b/k1", "", "InvalidBucketName"},
		{"127.0.0.1", "/b", "", "InvalidBucketName"},
		{"127.0.0.1", "/b@/k1", "", "InvalidBucketName"},
		{"b.localhost", "/k1", "", "InvalidBucketName"},
		{"[::1]:9000", "/bucket/k", "bucket", "k"},
		{"kvcached", "/bucket/k", "bucket", "k"},
		{"KVB.kv.example.com", "/k", "kvb", "k"},
		{"a.b.kv.example.com", "/k", "a.b", "k"},
		{"kvb.deep.kv.example.com", "/k", "kvb", "k"},
		{"kv.example.com:443", "/bucket/k", "bucket", "k"},
		{"kv.example.com", "/Not_A_Bucket/k", "", "InvalidBucketName"},
		{"kv.example.com", "/bucket/" + strings.Repeat("k", 1025), "", "KeyTooLongError"},
		{"kv.example.com", "/bucket/%zz", "", "InvalidArgument"},
		{".localhost", "/k", "", "InvalidBucketName"},
	} {
		got, err := locate(c.host, c.path, []string{"kv.example.com", "deep.kv.example.com"})
		if err != nil {
			got.key = codeOf(err)
		}
		if got.bucket != c.bucket || got.key != c.key {
			t.Errorf("%s%s is %+v, want %s %s", c.host, c.path, got, c.bucket, c.key)
		}
	}
}

func TestHosts(t *testing.T) {
	b := serve(t, Options{})
	b.want(b.do("PUT", "/mybkt", "", "Host", "gpu1.example:9411"), 200)
	b.want(b.do("PUT", "/mybkt/k", "v", "Host", "gpu1.example:9411"), 200)
	b.want(b.do("GET", "/mybkt/k", "", "Host", "127.0.0.1"), 200, "v")
	b.want(b.do("GET", "/k", "", "Host", "mybkt.localhost"), 200, "v")
	b.want(b.do("GET", "/", "", "Host", "gpu1.example:9411"), 200, "<Name>mybkt</Name>")
	b.want(b.do("GET", "/mybkt?list-type=2", "", "Host", "gpu1.example:9411"), 200, "<Key>k</Key>")
	b.want(b.do("PUT", "/", "", "Host", "mybkt.gpu1.example"), 405, "s3.domains")
	b.want(b.do("PUT", "/m@1@0@abc", "v", "Host", "mybkt.gpu1.example"), 400, "InvalidBucketName", "s3.domains",
		"mybkt.gpu1.example")
	b.want(b.do("PUT", "/b/k1", "v", "Host", "127.0.0.1"), 400, "InvalidBucketName")
}

func TestRanges(t *testing.T) {
	b := serve(t, Options{})
	b.want(b.do("PUT", "/k", "0123456789"), 200)
	b.want(b.do("PUT", "/empty", ""), 200)
	for _, c := range []struct {
		header, body, content string
		status                int
	}{
		{"bytes=0-3", "0123", "bytes 0-3/10", 206}, {"bytes=8-", "89", "bytes 8-9/10", 206}, {"bytes=-3", "789", "bytes 7-9/10", 206},
		{"bytes=-100", "0123456789", "bytes 0-9/10", 206}, {"bytes=0-8388607", "0123456789", "bytes 0-9/10", 206},
		{"bytes=9-99999999999999999999", "9", "bytes 9-9/10", 206}, {"bytes=10-", "", "bytes */10", 416}, {"bytes=-0", "", "bytes */10", 416},
		{"bytes=4-2", "0123456789", "", 200}, {"bytes=0-1,3-4", "0123456789", "", 200}, {"bytes=x-4", "0123456789", "", 200}, {"lines=1-2", "0123456789", "", 200},
	} {
		got := b.do("GET", "/k", "", "Range", c.header)
		if got.StatusCode != c.status || c.status < 300 && got.body != c.body ||
			got.Header.Get("Content-Range") != c.content {
			t.Errorf("%s: %d %q %s", c.header, got.StatusCode, got.body, got.Header.Get("Content-Range"))
		}
	}
	b.want(b.do("GET", "/empty", "", "Range", "bytes=0-5"), 416, "InvalidRange")
	if h := b.want(b.do("HEAD", "/k", "", "Range", "bytes=2-4"), 206); h.ContentLength != 3 {
		t.Error("HEAD of a range:", h.ContentLength)
	}
}

func TestConditions(t *testing.T) {
	b := serve(t, Options{})
	tag := b.want(b.do("PUT", "/k", "v", "If-None-Match", "*"), 200).Header.Get("ETag")
	for _, c := range []struct {
		method, name, value string
		status              int
	}{
		{"GET", "If-Match", tag, 200}, {"GET", "If-Match", strings.Trim(tag, `"`), 200}, {"GET", "If-Match", `"x", ` + tag, 200}, {"GET", "If-Match", "*", 200},
		{"GET", "If-Match", `"x"`, 412}, {"HEAD", "If-Match", `"x"`, 412},
		{"PUT", "If-None-Match", "*", 412}, {"PUT", "If-None-Match", tag, 501}, {"PUT", "If-Match", tag, 501},
	} {
		if got := b.do(c.method, "/k", "", c.name, c.value); got.StatusCode != c.status {
			t.Errorf("%s %s %s: %d, want %d", c.method, c.name, c.value, got.StatusCode, c.status)
		}
	}
	b.want(b.do("GET", "/k", ""), 200, "v")
}

func TestChecksums(t *testing.T) {
	b := serve(t, Options{})
	const text = "123456789"
	digest := md5.Sum([]byte(text))
	for name, value := range map[string]string{
		"x-amz-checksum-crc32": "y/Q5Jg==", "x-amz-checksum-crc32c": "4waSgw==",
		"x-amz-checksum-crc64nvme": "rosUhgp5mIg=",
		"x-amz-checksum-sha1":      "98O8HYCOBHMqCXJ0qoZ0Iu1+bf4=",
		"x-amz-checksum-sha256":    "FeKw09pPtuJj2d+A4gUiGUrOsoo8Thc9sqO9yeTJ1yU=",
		"Content-MD5":              base64.StdEncoding.EncodeToString(digest[:]),
		headerPayload:              "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
	} {
		got := b.do("PUT", "/k", text, name, value)
		if name == "x-amz-checksum-sha1" || name == "x-amz-checksum-sha256" {
			continue // below, with values computed
		}
		b.want(got, 200)
		if strings.HasPrefix(name, checksumPrefix) && got.Header.Get(name) != value {
			t.Errorf("%s is not repeated", name)
		}
		if bad := b.do("PUT", "/k", "12345678", name, value); bad.StatusCode != 400 {
			t.Errorf("%s of other bytes: %d", name, bad.StatusCode)
		}
	}
	for name, create := range algorithms {
		h := create()
		_, _ = io.WriteString(h, text)
		value := base64.StdEncoding.EncodeToString(h.Sum(nil))
		b.want(b.do("PUT", "/k", text, checksumPrefix+name, value), 200)
		got := b.want(b.do("GET", "/k", "", "x-amz-checksum-mode", "ENABLED"), 200)
		if got.Header.Get(checksumPrefix+name) != value || got.Header.Get("x-amz-checksum-crc32c") != "4waSgw==" ||
			got.Header.Get("x-amz-checksum-type") != "FULL_OBJECT" {
			t.Errorf("%s: %v", name, got.Header)
		}
	}
	if got := b.do("GET", "/k", ""); got.Header.Get("x-amz-checksum-crc32c") != "" {
		t.Error("checksums that nobody asked for")
	}
	b.want(b.do("PUT", "/k", text, "x-amz-checksum-crc32", "y/Q5Jg==", "x-amz-checksum-crc32c", "4waSgw=="), 400,
		"InvalidRequest")
	b.want(b.do("PUT", "/k", text, "x-amz-checksum-crc32", "y/Q5"), 400, "InvalidRequest")
	b.want(b.do("PUT", "/k", text, "Content-MD5", "x"), 400, "InvalidDigest")
	if b.server.Stats().BadDigests == 0 {
		t.Error("nothing is counted")
	}
}

// TestTrailers sends what SDKs send over TLS: an unsigned aws-chunked body with a checksum after
// it.
func TestTrailers(t *testing.T) {
	b := serve(t, Options{})
	sum := crc32.ChecksumIEEE([]byte("hello world"))
	text := base64.StdEncoding.EncodeToString([]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
	header := []string{headerPayload, streamingUnsignedTrailer, "Content-Encoding", "aws-chunked",
		"x-amz-decoded-content-length", "11", headerTrailer, "x-amz-checksum-crc32"}
	body := "6\r\nhello \r\n5\r\nworld\r\n0\r\nx-amz-checksum-crc32:" + text + "\r\n\r\n"
	b.want(b.do("PUT", "/k", body, header...), 200)
	if got := b.want(b.do("GET", "/k", ""), 200, "hello world"); got.Header.Get("Content-Encoding") != "" {
		t.Error("aws-chunked was kept")
	}
	for name, bad := range map[string]string{
		"BadDigest":      strings.Replace(body, "world", "World", 1),
		"InvalidRequest": strings.Replace(body, "x-amz-checksum-crc32:"+text+"\r\n", "", 1),
		"IncompleteBody": strings.Replace(body, "6\r\n", "5\r\n", 1), "<Code>": body[:20],
	} {
		b.want(b.do("PUT", "/k", bad, header...), 400, name)
	}
	b.want(b.do("PUT", "/k", body, headerPayload, "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD",
		"x-amz-decoded-content-length", "11"), 501)
	b.want(b.do("PUT", "/k", body, headerPayload, streamingUnsignedTrailer), 411)
	b.want(b.do("PUT", "/k", body, headerPayload, streamingUnsignedTrailer, "x-amz-decoded-content-length",
		fmt.Sprint(MaxObject+1)), 400, "EntityTooLarge")
}

func TestRefusedObjects(t *testing.T) {
	sink := &fillable{lone: arena(t, 4<<20)}
	b := serve(t, Options{Sink: sink})
	sink.full.Store(true)
	b.want(b.do("PUT", "/k", "x"), 503, "SlowDown")
	sink.full.Store(false)
	b.want(b.do("PUT", "/k", "x", "X-Cgn-Durable", "true"), 400, "SSD")
	b.want(b.do("PUT", "/k", "x", "X-Cgn-Durable", "1"), 400, "InvalidArgument", "must be true or false")
	b.want(b.do("PUT", "/k", "x", "X-Cgn-Durable", "False"), 200)
	b.want(b.do("PUT", "/k", "x", "x-amz-copy-source", "/a/b"), 501, "x-amz-copy-source")
	b.want(b.do("GET", "/k?acl", ""), 501, "acl")
	b.want(b.do("GET", "/k?versionId=7", ""), 501, "versionId")
	b.want(b.do("PUT", "/k", "x", "x-amz-meta-a", strings.Repeat("y", 2100)), 400, "MetadataTooLarge")
	b.want(b.do("PATCH", "/k", ""), 405, "MethodNotAllowed")
	b.want(b.do("PUT", "/cgn:nonsense", "x"), 400, "InvalidArgument")
	b.want(b.do("GET", "/?max-keys=-1", ""), 400, "max-keys")
	b.want(b.do("PUT", "/acc", strings.Repeat("x", 9000), "Host", "127.0.0.1"), 400, "MalformedXML")
	// A body that is too large is refused by its length alone: the client still waits for 100
	// Continue.
	conn, err := net.Dial("tcp", b.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "PUT /k HTTP/1.1\r\nHost: kvb.localhost\r\nContent-Length: %d\r\nExpect: "+
		"100-continue\r\n\r\n", MaxObject+1)
	first := make([]byte, 12)
	if _, err := io.ReadFull(conn, first); err != nil || string(first) != "HTTP/1.1 400" {
		t.Errorf("%q %v", first, err)
	}
}

// TestNoLength puts objects without a Content-Length. Nothing is stored; a length of 0 is one.
func TestNoLength(t *testing.T) {
	b := serve(t, Options{})
	for headers, want := range map[string]string{
		"":                                "HTTP/1.1 411",
		"Transfer-Encoding: chunked\r\n":  "HTTP/1.1 411",
		"Content-Length: 0\r\nX-Y: z\r\n": "HTTP/1.1 200",
	} {
		conn, err := net.Dial("tcp", b.http.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(conn, "PUT /k HTTP/1.1\r\nHost: kvb.localhost\r\n%s\r\n", headers)
		first := make([]byte, len(want))
		if _, err := io.ReadFull(conn, first); err != nil || string(first) != want {
			t.Errorf("with %q: %q %v", headers, first, err)
		}
		_ = conn.Close()
		status := 404
		if want == "HTTP/1.1 200" {
			status = 200
		}
		b.want(b.do("GET", "/k", ""), status, "")
		b.do("DELETE", "/k", "")
	}
}

// TestContinue sends a body only when it is asked for.
func TestContinue(t *testing.T) {
	b := serve(t, Options{})
	conn, err := net.Dial("tcp", b.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "PUT /k HTTP/1.1\r\nHost: kvb.localhost\r\nContent-Length: 5\r\nExpect: "+
		"100-continue\r\n\r\n")
	const want = "HTTP/1.1 100 Continue\r\n\r\n"
	first := make([]byte, len(want))
	if _, err := io.ReadFull(conn, first); err != nil || string(first) != want {
		t.Fatalf("%q %v", first, err)
	}
	_, _ = io.WriteString(conn, "hello")
	if _, err := io.ReadFull(conn, first[:12]); err != nil || string(first[:12]) != "HTTP/1.1 200" {
		t.Fatalf("%q %v", first, err)
	}
	b.want(b.do("GET", "/k", ""), 200, "hello")
}

// TestBrokenBody ends a connection in the middle of a PUT: the draft is freed, and no part of the
// object is there.
func TestBrokenBody(t *testing.T) {
	b := serve(t, Options{})
	conn, err := net.Dial("tcp", b.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = fmt.Fprintf(conn, "PUT /k HTTP/1.1\r\nHost: kvb.localhost\r\nContent-Length: 100\r\n\r\nabc")
	_ = conn.Close()
	deadline := time.Now().Add(time.Minute)
	for b.server.Stats().Aborted == 0 && time.Now().Before(deadline) {
		b.want(b.do("GET", "/k", ""), 404)
	}
	if st := b.server.Stats(); st.Aborted != 1 {
		t.Errorf("%+v", st)
	}
}

// TestSlowReader does not read an answer. The server cuts the connection, and the block is free
// again.
func TestSlowReader(t *testing.T) {
	// the timeout is for each MiB; a busy machine needs its time to write one
	b := serve(t, Options{Timeout: 500 * time.Millisecond})
	b.want(b.do("PUT", "/k", string(pattern(32<<20))), 200)
	conn, err := net.Dial("tcp", b.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "GET /k HTTP/1.1\r\nHost: kvb.localhost\r\n\r\n")
	deadline := time.Now().Add(time.Minute)
	for b.server.Stats().Aborted == 0 && time.Now().Before(deadline) {
		b.want(b.do("HEAD", "/none", ""), 404)
	}
	if st := b.server.Stats(); st.Aborted != 1 {
		t.Errorf("%+v", st)
	}
}

func TestBlockAddress(t *testing.T) {
	of := func(tenant string) string {
		n := block.Namespace{Model: "m", Revision: "r", DType: "d", Layout: "l", Tokens: 16, TP: 1, PP: 1,
			Tenant: tenant}
		return "/" + block.Text(n.String(), block.Addr{Digest: block.Seed("m", "", ""), Layer: 3})
	}
	b := serve(t, Options{})
	b.want(b.do("PUT", of(""), "kv"), 200)
	b.want(b.do("GET", strings.ReplaceAll(of(""), ":", "%3A"), "", "Host", "other.localhost"), 200, "kv")
	if got := b.do("GET", "/", ""); strings.Contains(got.body, "cgn:") {
		t.Error("a block address is listed")
	}
	for address, codes := range map[string]map[string]string{
		of("acme"): {"acme": "<nil>", "other": "AccessDenied"}, of(""): {"acme": "AccessDenied"},
	} {
		it := mustItem(t, "any", strings.TrimPrefix(address, "/"))
		for tenant, code := range codes {
			if got := codeOf((caller{tenant: tenant}).mayUse(it)); got != code {
				t.Errorf("%s: %s: %s", address, tenant, got)
			}
		}
		if err := (caller{open: true}).mayUse(it); err != nil {
			t.Errorf("%s: a key without a tenant: %v", address, err)
		}
	}
}

// TestNamedObject writes an object with a parent and names, which take the place of its headers.
func TestNamedObject(t *testing.T) {
	n := block.Namespace{Model: "m", Revision: "r", DType: "d", Layout: "l", Tokens: 32, TP: 1, PP: 1}
	a := block.Addr{Digest: block.Seed("m", "", ""), Model: n.ID(), Layer: 3}
	key := "/" + block.Text(n.String(), a)
	sink := arena(t, 16<<20)
	b := serve(t, Options{Sink: sink})
	b.want(b.do("PUT", key+":"+strings.Repeat("7", 64)+":1112131415161718", "kv", "x-amz-meta-a", "b"), 200)
	b.want(b.do("GET", key, ""), 200, "kv")
	b.want(b.do("GET", key+"::", ""), 200, "kv")
	b.want(b.do("PUT", key+"::11", "kv"), 400)
	info, err := sink.Describe(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if names := block.ParseNames(info.Item.Attr); string(names) != "\x11\x12\x13\x14\x15\x16\x17\x18" ||
		info.Item.Parent[31] != 0x77 {
		t.Errorf("%+v", info.Item)
	}
}
