package ctltest

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/kvcached"
)

// StartCache runs a cache daemon and returns it, with its socket.
func StartCache(t *testing.T, change ...func(*kvcached.Config)) (d *kvcached.Daemon, sock string) {
	t.Helper()
	var c kvcached.Config
	if err := config.Defaults(&c); err != nil {
		t.Fatal(err)
	}
	c.Daemon.Data = t.TempDir()
	c.Daemon.Sock, c.Daemon.RAM, c.Daemon.SSD = filepath.Join(c.Daemon.Data, "kv.sock"), 32<<20, 128<<20
	c.Daemon.Admin, c.RESP.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	for _, f := range change {
		f(&c)
	}
	d, err := kvcached.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- d.Run(ctx, ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return d, c.Daemon.Sock
}
