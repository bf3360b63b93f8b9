package keys

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/internal/replace"
	"github.com/cognitora/dataplane/internal/rights"
)

// maxFile bounds a file of keys, in bytes.
const maxFile = 64 << 20

// document is the content of a file of keys. A file that was cut is no JSON document.
type document struct {
	Keys []*Record `json:"keys"`
}

// ParseFile parses the content of a file of keys. One bad record makes the whole file bad.
func ParseFile(doc []byte) ([]*Record, error) {
	var d document
	if len(bytes.TrimSpace(doc)) == 0 {
		return nil, errors.New("it is empty; cgn-ctl key create makes a key in it")
	}
	if err := decode(doc, &d); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field == "" {
			return nil, errors.New(`it is no object like {"keys": []}`)
		}
		return nil, err
	}
	if d.Keys == nil {
		return nil, errors.New(`it has no list "keys"`)
	}
	for i, r := range d.Keys {
		if r == nil {
			return nil, fmt.Errorf("keys[%d] is null", i)
		}
		if err := r.Check(); err != nil {
			at := fmt.Sprintf("keys[%d]: ", i)
			return nil, errors.New(at + strings.ReplaceAll(err.Error(), "\n", "\n"+at))
		}
	}
	if err := new(Set).Put(d.Keys); err != nil {
		return nil, err
	}
	return d.Keys, nil
}

// ReadFile returns the content of a file of keys. ReadFile refuses a file that others than its
// owner and its group can read, or that others than its owner can change, or that every user can
// replace.
func ReadFile(name string) ([]byte, error) {
	f, err := rights.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := checkFile(name, info); err != nil {
		return nil, err
	}
	doc, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(doc) > maxFile {
		err = fmt.Errorf("%s has more than %d MiB", name, maxFile>>20)
	}
	return doc, err
}

func checkFile(name string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", name)
	}
	return cmp.Or(rights.Private(name, info), rights.Kept(name))
}

// Edit changes a file of keys in one step: a reader finds it as before or as after. A file that is
// not there, or empty, is one without keys. Edits of several processes take turns by a lock on a
// file beside it.
func Edit(name string, change func([]*Record) ([]*Record, error)) error {
	if at, err := filepath.EvalSymlinks(name); err == nil {
		name = at // all links to a file have one lock
	}
	unlock, err := lock(name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the directory %s does not exist", filepath.Dir(name))
	}
	if err != nil {
		return err
	}
	defer unlock()
	var records []*Record
	switch doc, err := ReadFile(name); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case len(bytes.TrimSpace(doc)) == 0:
	default:
		if records, err = ParseFile(doc); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if records, err = change(records); err != nil {
		return err
	}
	doc, err := json.MarshalIndent(document{append([]*Record{}, records...)}, "", "  ")
	if err != nil {
		return err
	}
	if _, err := ParseFile(doc); err != nil {
		return err
	}
	return replace.OwnedBytes(name, 0o600, append(doc, '\n'))
}

// lock waits for the lock of a file of keys.
func lock(of string) (unlock func(), err error) {
	f, err := openLock(of)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// openLock opens the lock of a file of keys. A lock that openLock makes gets the owner of the file,
// so that an edit by root does not lock the owner out.
func openLock(of string) (*os.File, error) {
	name := of + ".lock"
	const flags = os.O_RDWR | unix.O_NOFOLLOW
	f, err := os.OpenFile(name, flags|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		f, err = os.OpenFile(name, flags, 0)
		if errors.Is(err, fs.ErrPermission) {
			err = fmt.Errorf("%w; it has another owner than the keys: sudo chown --reference=%s %s", err, of, name)
		}
		return f, err
	}
	if err != nil {
		return nil, err
	}
	if keys, missing := os.Stat(of); missing == nil {
		err = replace.SameOwner(f, keys)
	}
	if err != nil {
		f.Close()
		os.Remove(name)
		return nil, err
	}
	return f, nil
}
