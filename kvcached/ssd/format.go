package ssd

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
)

// formatVersion is the version of segments and rows together. Version 2 added records that only
// older programs read. Version 1 is read as well.
const formatVersion = 2

const (
	formatFile = "FORMAT"
	lockFile   = "LOCK"
)

// unsealed stands in FORMAT in place of the key's check if payloads are not sealed.
const unsealed = "none"

// checkFormat compares the directory's version and key with this program's. If upgrade is set, it
// marks an older version as this one. made is false for a new directory, which writeFormat must
// mark once it has rows. It returns ErrFormat, ErrMark, KeyError, or an error of reading.
func checkFormat(o *Options, upgrade bool) (made bool, err error) {
	names, err := o.fs.List(o.Dir)
	if err != nil {
		return false, err
	}
	if !slices.Contains(names, formatFile) {
		for _, n := range names {
			if _, ok := segmentID(n); ok {
				return false, fmt.Errorf("%w: %s holds segments but no file %s; put it back from a copy", ErrFormat, o.Dir,
					formatFile)
			}
		}
		return false, nil
	}
	version, check, err := readFormat(o)
	if err != nil {
		return false, err
	}
	if version < 1 || version > formatVersion {
		return false, fmt.Errorf("%w: %s has version %d, this program writes %d; use the program that made it",
			ErrFormat, o.Dir, version, formatVersion)
	}
	if check != keyCheck(o.Key) {
		return false, &KeyError{Dir: o.Dir, Sealed: check != unsealed, Given: o.Key != nil}
	}
	if version < formatVersion && upgrade {
		return true, writeFormat(o)
	}
	return true, nil
}

// keyCheck identifies a key without revealing it.
func keyCheck(key []byte) string {
	if key == nil {
		return unsealed
	}
	b, err := hkdf.Key(sha256.New, key, nil, "cognitora.ssd.check.v1", 8)
	if err != nil {
		return unsealed
	}
	return hex.EncodeToString(b)
}

func readFormat(o *Options) (version int, check string, err error) {
	name := filepath.Join(o.Dir, formatFile)
	f, _, err := o.fs.Open(name)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = f.Close() }()
	size, err := f.Size()
	if err == nil && size < page {
		return 0, "", fmt.Errorf("%w: %s has %d bytes instead of %d", ErrMark, name, size, page)
	}
	b := alignedBytes(page)
	if err == nil {
		err = f.ReadAt([][]byte{b}, 0)
	}
	if err != nil {
		return 0, "", fmt.Errorf("ssd: reading %s: %w", name, err)
	}
	text, _, _ := bytes.Cut(b, []byte{0})
	if _, err := fmt.Sscanf(string(text), "cgn-kvcached ssd\nversion %d\nkey %s\n", &version, &check); err != nil {
		return 0, "", fmt.Errorf("%w: %s does not parse: %w", ErrMark, name, err)
	}
	return version, check, nil
}

// writeFormat replaces the file as a whole.
func writeFormat(o *Options) error {
	b := alignedBytes(page)
	copy(b, fmt.Sprintf("cgn-kvcached ssd\nversion %d\nkey %s\n", formatVersion, keyCheck(o.Key)))
	name := filepath.Join(o.Dir, formatFile)
	if err := o.fs.Remove(name + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, _, err := o.fs.Create(name + ".new")
	if err != nil {
		return err
	}
	err = errors.Join(f.WriteAt([][]byte{b}, 0), f.Datasync(), f.Close())
	if err == nil {
		err = o.fs.Rename(name+".new", name)
	}
	return errors.Join(err, o.fs.SyncDir(o.Dir))
}
