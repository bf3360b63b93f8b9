package ssd

import (
	"errors"
	"io/fs"
)

// Examine returns the error with which Open would refuse the tier in dir with key: ErrFormat,
// ErrMark, KeyError, or an error of reading. Examine locks, makes and changes nothing. A directory
// without a tier is no error.
func Examine(dir string, key []byte) error {
	_, err := checkFormat(&Options{Dir: dir, Key: key, fs: osFS{}}, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
