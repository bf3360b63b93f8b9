package s3

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

var uploadID = regexp.MustCompile(`<UploadId>(.*)</UploadId>`)

func (b *bed) start(path string, header ...string) string {
	b.t.Helper()
	return uploadID.FindStringSubmatch(b.want(b.do("POST", path+"?uploads", "", header...), 200).body)[1]
}

func (b *bed) part(path, id string, n int, body string) string {
	b.t.Helper()
	return b.want(b.do("PUT", fmt.Sprintf("%s?partNumber=%d&uploadId=%s", path, n, id), body), 200).Header.Get("ETag")
}

func TestMultipart(t *testing.T) {
	b := serve(t, Options{})
	id := b.start("/k", "Content-Type", "text/x", "x-amz-meta-a", "b")
	tags := map[int]string{1: b.part("/k", id, 1, "old"), 3: b.part("/k", id, 3, "c"), 2: b.part("/k", id, 2, "bbbb")}
	tags[1] = b.part("/k", id, 1, "aaaa")
	b.want(b.do("GET", "/k", ""), 404)
	b.want(b.do("GET", "/?uploads", ""), 501, "NotImplemented")
	b.want(b.do("GET", "/k?uploadId="+id, ""), 501, "NotImplemented")
	complete := string(completionText(tags))
	b.want(b.do("POST", "/k?uploadId="+id, strings.Replace(complete, tags[2][1:8], "0000000", 1)), 400, "InvalidPart")
	b.want(b.do("POST", "/k?uploadId="+id, strings.Replace(complete, "Number>1<", "Number>5<", 1)), 400, "InvalidPart")
	b.want(b.do("POST", "/k?uploadId="+id, complete, "x-amz-mp-object-size", "10"), 400, "x-amz-mp-object-size")
	b.want(b.do("POST", "/k?uploadId="+id, "<CompleteMultipartUpload/>"), 400, "MalformedXML")
	b.want(b.do("POST", "/k?uploadId="+id, complete, "x-amz-checksum-crc32", "AAAAAA==", "x-amz-checksum-type",
		"FULL_OBJECT"), 400, "BadDigest")
	b.want(b.do("POST", "/k?uploadId="+id, complete, "x-amz-checksum-crc64nvme", "AAAAAAAAAAA="), 400, "BadDigest")
	b.want(b.do("POST", "/k?uploadId="+id, complete, "x-amz-checksum-crc32c", "AAAAAA==", "x-amz-checksum-type",
		"FULL_OBJECT"), 400, "BadDigest")
	b.want(b.do("POST", "/other?uploadId="+id, complete), 404, "NoSuchUpload")
	whole := crcText(block.Sum([]byte("aaaabbbbc")))
	b.want(b.do("POST", "/k?uploadId="+id, complete, "x-amz-mp-object-size", "9", "x-amz-checksum-crc32c", whole,
		"x-amz-checksum-type", "FULL_OBJECT"), 200, "<ETag>", "-3&#34;")
	got := b.want(b.do("GET", "/k", ""), 200, "aaaabbbbc")
	if got.Header.Get("Content-Type") != "text/x" || got.Header.Get("x-amz-meta-a") != "b" ||
		!strings.HasSuffix(got.Header.Get("ETag"), `-3"`) {
		t.Error(got.Header)
	}
	b.want(b.do("GET", "/k?partNumber=1", ""), 200, "aaaabbbbc")
	b.want(b.do("GET", "/k?partNumber=2", ""), 416, "InvalidPartNumber")
	b.want(b.do("POST", "/k?uploadId="+id, complete), 404, "NoSuchUpload")
	b.want(b.do("POST", "/other?uploadId="+id, complete), 404, "NoSuchUpload")
	b.want(b.do("PUT", "/k?partNumber=1&uploadId="+id, "x"), 404, "NoSuchUpload")
	if st := b.server.Stats(); st.Uploads != 0 || st.UploadBytes != 0 {
		t.Errorf("%+v", st)
	}
}

// TestComposite completes with a checksum of the parts' checksums, as some clients do. The server
// ignores it, because each part was compared with its own checksum.
func TestComposite(t *testing.T) {
	b := serve(t, Options{})
	id := b.start("/k")
	b.want(b.do("PUT", "/k?partNumber=1&uploadId="+id, "hello", "x-amz-checksum-crc32", "AAAAAA=="), 400, "BadDigest")
	complete := string(completionText(map[int]string{1: b.part("/k", id, 1, "hello")}))
	b.want(b.do("POST", "/k?uploadId="+id, complete, "x-amz-checksum-crc32", "AAAAAA==-1"), 200)
	b.want(b.do("GET", "/k", ""), 200, "hello")
}

func TestMultipartAborted(t *testing.T) {
	b := serve(t, Options{maxUploads: 2, maxUploadBytes: 3 * 4096})
	id := b.start("/k")
	other := b.start("/k")
	b.want(b.do("POST", "/k?uploads", ""), 503, "SlowDown")
	b.part("/k", id, 1, strings.Repeat("x", 5000))
	b.part("/k", other, 1, "")
	b.want(b.do("PUT", "/k?partNumber=2&uploadId="+id, "x"), 503, "SlowDown", "of 12288 bytes")
	b.want(b.do("PUT", "/k?partNumber=0&uploadId="+other, "x"), 400, "partNumber")
	b.want(b.do("PUT", "/k?partNumber=1&uploadId="+other, "x"), 503)
	b.want(b.do("DELETE", "/k?uploadId="+id, ""), 204)
	b.want(b.do("DELETE", "/k?uploadId="+id, ""), 404, "NoSuchUpload")
	b.want(b.do("PUT", "/k?partNumber=1&uploadId="+other, "x", "Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA=="), 400,
		"BadDigest")
	for n := 1; n <= 4; n++ { // alone, it may have more
		b.part("/k", other, n, "")
	}
	if st := b.server.Stats(); st.Uploads != 1 || st.UploadBytes != 4*4096 {
		t.Errorf("%+v", st)
	}
}

// TestMultipartLargest uploads the largest object, as boto3 does, into a memory that is full and
// four times its size.
func TestMultipartLargest(t *testing.T) {
	b := serve(t, Options{Sink: arena(t, 256<<20)})
	body := string(pattern(8 << 20))
	for i := range 256 {
		b.want(b.do("PUT", fmt.Sprintf("/old%d", i), body[:1<<20]), 200)
	}
	for round := range 2 {
		id, tags := b.start("/k"), map[int]string{}
		for n := 1; n <= 8; n++ {
			tags[n] = b.part("/k", id, n, body)
			b.want(b.do("PUT", fmt.Sprintf("/new%d.%d", round, n), body[:3<<20]), 200)
		}
		b.want(b.do("PUT", "/k?partNumber=9&uploadId="+id, "x"), 400, "EntityTooLarge", "67108864")
		b.want(b.do("POST", "/k?uploadId="+id, string(completionText(tags))), 200)
		if got := b.want(b.do("GET", "/k", ""), 200); got.body != strings.Repeat(body, 8) {
			t.Error("other bytes came back")
		}
	}
	b.want(b.do("POST", "/k?uploads", "", "x-amz-mp-object-size", "67108865"), 400, "EntityTooLarge")
	if st := b.server.Stats(); st.Uploads != 0 || st.UploadBytes != 0 {
		t.Errorf("%+v", st)
	}
}

// TestMultipartBeyondRAM: an upload that could never be put together is refused.
func TestMultipartBeyondRAM(t *testing.T) {
	b := serve(t, Options{Sink: arena(t, 1<<20)})
	id := b.start("/k")
	b.part("/k", id, 1, string(pattern(384<<10)))
	b.want(b.do("PUT", "/k?partNumber=2&uploadId="+id, "x"), 400, "EntityTooLarge", "393216", "kvcached.ram")
	b.want(b.do("POST", "/k?uploads", "", "x-amz-mp-object-size", "400000"), 400, "EntityTooLarge")
}

// TestMultipartChanged completes an upload after the bytes of a part have changed in memory.
func TestMultipartChanged(t *testing.T) {
	b := serve(t, Options{})
	id := b.start("/k")
	complete := string(completionText(map[int]string{1: b.part("/k", id, 1, "right")}))
	copy(b.server.uploads.all[id].parts[1].draft.Bytes(), "wrong")
	b.want(b.do("POST", "/k?uploadId="+id, complete), 500, "InternalError")
	b.want(b.do("GET", "/k", ""), 404)
}

// TestMultipartFull completes an upload when there is no room for the object. The upload stays and
// can be completed later.
func TestMultipartFull(t *testing.T) {
	sink := &fillable{lone: arena(t, 4<<20)}
	b := serve(t, Options{Sink: sink})
	id := b.start("/k")
	complete := string(completionText(map[int]string{1: b.part("/k", id, 1, "x")}))
	sink.full.Store(true)
	b.want(b.do("POST", "/k?uploadId="+id, complete), 503, "SlowDown")
	sink.full.Store(false)
	b.want(b.do("POST", "/k?uploadId="+id, complete), 200)
}

// askDirectly calls the server without a network between.
func askDirectly(s *Server, method, url, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
	r.Host = "kvb.localhost"
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func TestMultipartExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Options{Sink: arena(t, 4<<20)})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(method, url, body string) *httptest.ResponseRecorder { return askDirectly(s, method, url, body) }
		id := uploadID.FindStringSubmatch(ask("POST", "/k?uploads", "").Body.String())[1]
		for range 5 {
			time.Sleep(100 * time.Second)
			if w := ask("PUT", "/k?partNumber=1&uploadId="+id, "xyz"); w.Code != http.StatusOK {
				t.Fatal(w.Code, w.Body)
			}
		}
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		if st := s.Stats(); st.UploadsExpired != 1 || st.Uploads != 0 || st.UploadBytes != 0 {
			t.Errorf("%+v", st)
		}
		s.Close()
	})
}

// TestMultipartPurged purges between a part and the completion, by the key as a purge of a model
// does. The client is told to upload again.
func TestMultipartPurged(t *testing.T) {
	s := arena(t, 8<<20)
	b := serve(t, Options{Sink: s})
	id, other := b.start("/llama/k"), b.start("/k")
	tags := map[int]string{1: b.part("/llama/k", id, 1, "old")}
	kept := map[int]string{1: b.part("/k", other, 1, "kept")}
	if _, err := s.Purge(t.Context(), func(_ string, key []byte) bool {
		return strings.Contains(string(key), "llama")
	}); err != nil {
		t.Fatal(err)
	}
	b.want(b.do("POST", "/llama/k?uploadId="+id, string(completionText(tags))), 404, "NoSuchUpload", "purge")
	tags[1] = b.part("/llama/k", id, 1, "new")
	b.want(b.do("POST", "/llama/k?uploadId="+id, string(completionText(tags))), 200)
	b.want(b.do("GET", "/llama/k", ""), 200, "new")
	b.want(b.do("POST", "/k?uploadId="+other, string(completionText(kept))), 200)
	b.want(b.do("GET", "/k", ""), 200, "kept")
}
