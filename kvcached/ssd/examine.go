package ssd

import (
	"errors"
	"io/fs"
)

// RowsDir is the folder of the index in a tier's directory.
const RowsDir = rowsDir

// Examine says whether a tier in dir is of a version that Open takes, and of key, without locking,
// making or changing anything: ErrFormat, ErrMark, KeyError, or what reading gives where that
// cannot be told. Where there is no tier yet it returns nil.
func Examine(dir string, key []byte) error {
	_, err := checkFormat(&Options{Dir: dir, Key: key, fs: osFS{}}, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
