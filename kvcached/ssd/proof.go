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

// The last checkpoint is written to a file of its own, too, after the rows have it. Pebble takes
// damage near the end of its log for the end that a crash left, and opens without what followed;
// rows that are older than the file show that.
//
//	0 magic · 8 checkpoint · 48 CRC32C of bytes 0 to 48 · zero up to 4 KiB
//	4096 magic · 4104 number of the newest segment u32 · 4108 CRC32C of the 12 bytes before · zero up to 8 KiB
//
// The second page may be missing. Verify knows from it of a newest segment that is gone.
const (
	proofFile  = "CHECKPOINT"
	proofMagic = "cgnkvCHK"
	proofSize  = len(proofMagic) + checkpointSize

	newestMagic = "cgnkvNEW"
)

// errOlder says that the rows have lost their end.
var errOlder = errors.New("ssd: the rows are older than the last checkpoint")

// errProof says that the file is damaged, which costs nothing but the proof: Open writes it again.
var errProof = errors.New("ssd: the copy of the checkpoint is damaged")

// readProof returns the checkpoint that the rows must have reached; the zero one if the file is
// missing or, with errProof, damaged.
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
		return c, nil // the tier ended before its first checkpoint
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

// writeProof writes the checkpoint, which the rows have for certain. A failure costs nothing but
// the proof.
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

// writeNewest says that a segment is there, before anything is written to it. A failure costs
// nothing but that Verify does not miss the segment.
func (t *Tier) writeNewest(id uint32) {
	b := t.pages.Get().(*[page]byte)
	defer t.pages.Put(b)
	clear(b[:])
	binary.LittleEndian.PutUint32(b[copy(b[:], newestMagic):], id)
	binary.LittleEndian.PutUint32(b[12:], block.Sum(b[:12]))
	if err := errors.Join(t.proof.WriteAt([][]byte{b[:]}, page), t.proof.Datasync()); err != nil {
		t.writeFailed("newest segment", err)
	}
}

// readNewest returns the number of the newest segment that there was; 0 if that is not known.
func readNewest(o *Options) uint32 {
	f, _, err := o.fs.Open(filepath.Join(o.Dir, proofFile))
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	b := alignedBytes(page)
	if f.ReadAt([][]byte{b}, page) != nil || string(b[:8]) != newestMagic ||
		block.Sum(b[:12]) != binary.LittleEndian.Uint32(b[12:]) {
		return 0
	}
	return binary.LittleEndian.Uint32(b[8:])
}
