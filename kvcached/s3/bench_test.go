package s3

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// BenchmarkGet measures answers with objects. For comparison a bare net/http handler writes the
// same bytes from ordinary memory.
func BenchmarkGet(b *testing.B) {
	for _, size := range []int{1 << 20, 8 << 20} {
		payload := pattern(size)
		s := benchServer(b)
		put(b, s.URL+"/bucket/k", payload)
		bare := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(size))
			_, _ = w.Write(payload)
		}))
		b.Cleanup(bare.Close)
		for name, url := range map[string]string{"s3": s.URL, "bare": bare.URL} {
			b.Run(fmt.Sprintf("%dMiB/%s", size>>20, name), func(b *testing.B) {
				b.SetBytes(int64(size))
				buffer := make([]byte, 256<<10)
				for b.Loop() {
					resp, err := http.Get(url + "/bucket/k")
					if err != nil || resp.StatusCode != http.StatusOK {
						b.Fatal(resp, err)
					}
					_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{resp.Body}, buffer)
					_ = resp.Body.Close()
				}
			})
		}
	}
}

// BenchmarkPut measures the storing of objects. For comparison a bare net/http handler reads as
// many bytes into one buffer.
func BenchmarkPut(b *testing.B) {
	for _, size := range []int{1 << 20, 8 << 20} {
		payload := pattern(size)
		s := benchServer(b)
		into := make([]byte, size)
		bare := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadFull(r.Body, into)
		}))
		b.Cleanup(bare.Close)
		for name, url := range map[string]string{"s3": s.URL, "bare": bare.URL} {
			b.Run(fmt.Sprintf("%dMiB/%s", size>>20, name), func(b *testing.B) {
				b.SetBytes(int64(size))
				for b.Loop() {
					put(b, url+"/bucket/k", payload)
				}
			})
		}
	}
}

// BenchmarkList walks over 100,000 objects for one page.
func BenchmarkList(b *testing.B) {
	sink := arena(b, 1<<30)
	s, err := New(Options{Sink: sink})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for i := range 100_000 {
		it, _ := itemOf("bucket", fmt.Sprintf("%x/%d", i*2654435761%(1<<32), i), "")
		if _, err := sink.Put(b.Context(), it, nil, false); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		r := httptest.NewRequest("GET", "http://localhost/bucket?list-type=2", nil)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "<KeyCount>1000<") {
			b.Fatal(w.Code)
		}
	}
}

func benchServer(b *testing.B) *httptest.Server {
	b.Helper()
	s, err := New(Options{Sink: arena(b, 256<<20)})
	if err != nil {
		b.Fatal(err)
	}
	server := httptest.NewServer(s)
	b.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		server.Close()
		s.Close()
	})
	return server
}

func put(b *testing.B, url string, payload []byte) {
	b.Helper()
	r, err := http.NewRequest("PUT", url, bytes.NewReader(payload))
	if err != nil {
		b.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil || resp.StatusCode != http.StatusOK {
		b.Fatal(resp, err)
	}
	_ = resp.Body.Close()
}
