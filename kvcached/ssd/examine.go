package ssd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// RowsDir is the folder of the index in a tier's directory.
const RowsDir = rowsDir

// CheckKey says whether a tier in dir would open with key, without locking, making or changing anything. ErrKey; ErrFormat
// or what reading gives where that cannot be told. Where there is no tier yet it returns nil.
func CheckKey(dir string, key []byte) error {
	if _, err := os.Stat(filepath.Join(dir, formatFile)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	_, check, err := readFormat(&Options{Dir: dir, fs: osFS{}})
	if err != nil {
		return err
	}
	if check != keyCheck(key) {
		return fmt.Errorf("%w: %s was made with another key, or without one", ErrKey, dir)
	}
	return nil
}
