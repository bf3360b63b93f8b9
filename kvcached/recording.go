package kvcached

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/cognitora/dataplane/kv/accesses"
	"github.com/cognitora/dataplane/kv/block"
)

// flushEvery is the longest part of a recording, in time, that a crash can lose.
const flushEvery = time.Second

// maxRecording is the largest size of the file, in bytes.
const maxRecording = 256 << 20

// recording is an access trace that is written to a file.
type recording struct {
	*accesses.Recorder
	file *os.File
}

// openRecording opens the file of kvcached.trace and continues an earlier recording.
func (d *Daemon) openRecording() error {
	name := d.config.Daemon.Trace
	if name == "" {
		return nil
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("kvcached.trace (--trace): %w; name a file that the daemon can write to", err)
	}
	size, err := resume(f)
	if err != nil {
		return errors.Join(fmt.Errorf("kvcached.trace (--trace): %w", err), f.Close())
	}
	left := maxRecording - size
	if size > 0 {
		d.log.Info("the recording of accesses goes on", "file", name, "bytes", size, "bytes_left", max(left, 0))
	}
	d.recorder = &recording{accesses.NewRecorder(f, left), f}
	return nil
}

// resume removes an incomplete last line of the file and returns the file's size. A file that is
// not a recording stays as it is.
func resume(f *os.File) (size int64, err error) {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return 0, err
	}
	head := make([]byte, 64<<10)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	first, _, whole := bytes.Cut(head[:n], []byte("\n"))
	if _, err := accesses.Read(bytes.NewReader(first)); whole && err != nil || !whole && first[0] != '{' {
		return 0, fmt.Errorf("%s is there and is no recording; name another file, or remove it", f.Name())
	}
	size, err = lastLineEnd(f, info.Size())
	if err == nil && size < info.Size() {
		err = f.Truncate(size) // removes a line that a crash has torn
	}
	return size, err
}

// lastLineEnd is the end of the last whole line.
func lastLineEnd(f *os.File, size int64) (int64, error) {
	piece := make([]byte, 64<<10)
	for size > 0 {
		from := max(size-int64(len(piece)), 0)
		part := piece[:size-from]
		if _, err := f.ReadAt(part, from); err != nil {
			return 0, err
		}
		if at := bytes.LastIndexByte(part, '\n'); at >= 0 {
			return from + int64(at) + 1, nil
		}
		size = from
	}
	return 0, nil
}

// keep writes the recorded accesses to the file every flushEvery until ctx ends.
func (r *recording) keep(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := r.Flush(); err != nil {
				log.Warn("accesses are not recorded any more", "file", r.file.Name(), "error", err)
				return
			}
		}
	}
}

// id is a number for an address that reveals nothing else of the address.
func (r *recording) id(a *block.Addr) []int64 {
	x := binary.LittleEndian.Uint64(a.Digest[:8]) ^ binary.LittleEndian.Uint64(a.Model[:8]) ^ uint64(a.Layer)<<32
	return []int64{int64(x >> 11)} // 53 bits, which every reader of JSON preserves
}

func (r *recording) close(log *slog.Logger) {
	err := r.Flush()
	if closeErr := r.file.Close(); err == nil {
		err = closeErr
	}
	s := r.Stats()
	if err != nil {
		log.Warn("the recording of accesses is not complete", "error", err)
	}
	log.Info("accesses recorded", "file", r.file.Name(), "lines", s.Lines, "left_out", s.Dropped)
}
