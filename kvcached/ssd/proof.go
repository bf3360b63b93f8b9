package ssd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/cognitora/dataplane/kv/block"
)

// The last checkpoint is copied to a file of its own once the rows have it. Pebble mistakes damage
// near the end of its log or manifest for a crash, and opens without the end. Rows that are older
// than this file show that loss.
//
//	0 magic · 8 checkpoint · 48 CRC32C of bytes 0 to 48 · zero up to 4 KiB
const (
	proofFile  = "CHECKPOINT"
	proofMagic = "cgnkvCHK"
	proofSize  = len(proofMagic) + checkpointSize
)

var (
	errOlder = errors.New("ssd: the rows are older than the last checkpoint")
	errProof = errors.New("ssd: the copy of the checkpoint is damaged") // Open writes it again
)

// readProof returns the checkpoint that the rows must have reached. It is zero if the file is
// missing, not written yet or, with errProof, damaged.
func readProof(o *Options) (c checkpoint, err error) {
	f, _, err := o.fs.Open(filepath.Join(o.Dir, proofFile))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("ssd: opening %s: %w", proofFile, err)
	}
	defer func() { _ = f.Close() }()
	b := alignedBytes(page)
	err = f.ReadAt([][]byte{b}, 0)
	if size, sizeErr := f.Size(); sizeErr == nil && size == 0 ||
		err == nil && !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) {
		return c, nil
	}
	if err != nil || string(b[:len(proofMagic)]) != proofMagic ||
		block.Sum(b[:proofSize]) != binary.LittleEndian.Uint32(b[proofSize:]) ||
		c.decode(b[len(proofMagic):proofSize]) != nil {
		return checkpoint{}, errProof
	}
	return c, nil
}

// openProof opens the file for writeProof.
func (t *Tier) openProof() (err error) {
	name := filepath.Join(t.o.Dir, proofFile)
	if t.proof, _, err = t.o.fs.Open(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if t.proof, _, err = t.o.fs.Create(name); err != nil {
		return err
	}
	return t.o.fs.SyncDir(t.o.Dir)
}

// writeProof copies a durable checkpoint. A failure only loses the proof.
func (t *Tier) writeProof(c *checkpoint) {
	b := t.pages.Get().(*[page]byte)
	defer t.pages.Put(b)
	clear(b[:])
	copy(b[copy(b[:], proofMagic):], c.encode())
	binary.LittleEndian.PutUint32(b[proofSize:], block.Sum(b[:proofSize]))
	if err := errors.Join(t.proof.WriteAt([][]byte{b[:]}, 0), t.proof.Datasync()); err != nil {
		t.writeFailed("checkpoint copy", err)
	}
}
