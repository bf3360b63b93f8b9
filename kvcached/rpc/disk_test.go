package rpc

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kvcached/ssd"
	"github.com/cognitora/dataplane/kvcached/store"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// broken is a store whose disk cannot delete.
type broken struct {
	*store.Store
	err error
}

func (b *broken) Delete(context.Context, block.Addr) (bool, error) { return false, b.err }

// TestADiskFails: the error tells the client whether to try again. The log names the file.
func TestADiskFails(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{RAM: 16 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const file = "/data/ssd/00000001.seg"
	for errno, want := range map[syscall.Errno]codes.Code{syscall.EIO: codes.Unavailable,
		syscall.ENOSPC: codes.ResourceExhausted} {
		var log bytes.Buffer
		b := &broken{s, &store.DiskError{What: "deleted",
			Err: fmt.Errorf("%w: %w", ssd.ErrIO, &fs.PathError{Op: "write", Path: file, Err: errno})}}
		srv, err := New(Options{Store: b, Residency: residency.New(residency.Options{}),
			Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "kv.sock")
		l, err := listen.OpenUnix(path, 0o660, -1)
		if err != nil {
			t.Fatal(err)
		}
		stop := serve(t, srv, l, nil)
		client := pb.NewKvClient(dial(t, "unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials())))
		_, err = client.Delete(t.Context(), &pb.DeleteRequest{Namespace: llama, Digests: make([]byte, 32)})
		if status.Code(err) != want || strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "disk") {
			t.Errorf("%v: %v", errno, err)
		}
		stop()
		if !strings.Contains(log.String(), file) {
			t.Errorf("the log does not name the file: %s", &log)
		}
	}
}
