package ssd

import (
	"errors"
	"io/fs"
)

// Examine returns why Open would refuse the tier in dir with key, without locking, making or
// changing anything: ErrFormat, ErrMark, KeyError, or an error of reading. A directory without a
// tier is no error.
func Examine(dir string, key []byte) error {
	_, err := checkFormat(&Options{Dir: dir, Key: key, fs: osFS{}}, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
