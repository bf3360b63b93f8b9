package s3

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kvcached/ssd"
	"github.com/cognitora/dataplane/kvcached/store"
)

// TestDurable stores objects that are on disk before they are answered. After a restart the test
// reads and lists the objects with all their headers.
func TestDurable(t *testing.T) {
	dir := t.TempDir()
	with := func(f func(b *bed)) {
		s, err := store.Open(context.Background(), store.Options{
			RAM: 16 << 20, SSD: &ssd.Options{Dir: dir, Cap: 64 << 20, Logger: slog.New(slog.DiscardHandler)},
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Run("server", func(t *testing.T) {
			f(serve(t, Options{Sink: lone{s}}))
		})
		if held := s.Stats().RAM.Held; held != 0 {
			t.Errorf("%d bytes are held", held)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	body := string(pattern(300_000))
	tag := ""
	with(func(b *bed) {
		tag = b.want(b.do("PUT", "/a/k", body, "X-Cgn-Durable", "true", "x-amz-meta-layer", "3", "Content-Type", "x/y"),
			200).Header.Get("ETag")
		b.want(b.do("PUT", "/gone", body, "X-Cgn-Durable", "true"), 200)
		b.want(b.do("DELETE", "/gone", ""), 204)
	})
	with(func(b *bed) {
		got := b.do("GET", "/a/k", "")
		deadline := time.Now().Add(time.Minute)
		for got.StatusCode == http.StatusNotFound && time.Now().Before(deadline) {
			got = b.do("GET", "/a/k", "") // the index is being read
		}
		b.want(got, 200)
		if got.body != body || got.Header.Get("ETag") != tag || got.Header.Get("x-amz-meta-layer") != "3" ||
			got.Header.Get("Content-Type") != "x/y" {
			b.t.Error(got.Header)
		}
		b.want(b.do("GET", "/gone", ""), 404)
		b.want(b.do("GET", "/?list-type=2", ""), 200, "<Key>a/k</Key>", "<KeyCount>1</KeyCount>")
	})
}

// TestTooLargeToBeDurable: the error names the bound of a durable object. Other objects may be
// longer.
func TestTooLargeToBeDurable(t *testing.T) {
	s, err := store.Open(context.Background(), store.Options{
		RAM: 64 << 20, SSD: &ssd.Options{Dir: t.TempDir(), Cap: 64 << 20, Logger: slog.New(slog.DiscardHandler)},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	b := serve(t, Options{Sink: lone{s}})
	body := string(pattern(8 << 20))
	refused := b.want(b.do("PUT", "/k", body, "X-Cgn-Durable", "true"), 400, "EntityTooLarge",
		"this object has 8 MiB; with kvcached.ssd = 64 MiB at most ", "can be durable")
	most := 0
	if _, err := fmt.Sscanf(refused.body[strings.Index(refused.body, "at most"):], "at most %d bytes",
		&most); err != nil {
		t.Fatal(refused.body)
	}
	b.want(b.do("PUT", "/k", body[:most+1], "X-Cgn-Durable", "true"), 400, "EntityTooLarge")
	b.want(b.do("PUT", "/k", body[:most], "X-Cgn-Durable", "true"), 200)
	b.want(b.do("PUT", "/k", body), 200)
	full := &store.DiskError{What: "durable", Err: &os.PathError{Path: "/secret", Err: syscall.ENOSPC}}
	if e := asAPI(full); e.code != "InsufficientCapacity" || e.status != http.StatusInsufficientStorage ||
		strings.Contains(e.message, "secret") {
		t.Errorf("%+v", e)
	}
}
