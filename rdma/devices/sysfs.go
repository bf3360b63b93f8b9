package devices

import (
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/Mellanox/rdmamap"
)

// maxText bounds a file of sysfs, which is at most a page. maxTable bounds files of proc with a
// line for each address.
const (
	maxText  = 4 << 10
	maxTable = 1 << 20
)

const classDir = "/sys/class/infiniband"

var errLong = errors.New("devices: file is longer than any of its kind")

// rdmamapLock guards rdmamap's package variables, which hold its folders. Only this package of the
// module imports rdmamap.
var rdmamapLock sync.Mutex

// mapped runs look while rdmamap's folders are below root.
func mapped(root string, look func()) {
	rdmamapLock.Lock()
	defer rdmamapLock.Unlock()
	for folder, where := range map[*string]string{
		&rdmamap.RdmaClassDir: classDir, &rdmamap.RdmaIbUcmDir: "/sys/class/infiniband_cm",
		&rdmamap.RdmaUmadDir:   "/sys/class/infiniband_mad",
		&rdmamap.RdmaUverbsDir: "/sys/class/infiniband_verbs",
	} {
		*folder = below(root, where)
	}
	look()
}

// below returns the place below root of a path of the host.
func below(root string, path ...string) string {
	return filepath.Join(cmp.Or(root, "/"), filepath.Join(path...))
}

// text returns the content of a small file without the newline. The text is empty if the file
// cannot be read, as with unused rows of a GID table.
func text(dir, name string) string {
	b, err := read(filepath.Join(dir, name), maxText)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// read returns the content of a file of at most limit bytes.
func read(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = errLong
	}
	return b, err
}

// linked returns the last element of a link's target.
func linked(dir, name string) string {
	to, err := os.Readlink(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// numbered returns the files of a folder whose names are numbers, in order, at most limit.
func numbered(dir string, limit int) (all []int) {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(limit) // names read before an error are used
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil && n >= 0 {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all
}

// there tells whether the host has a file.
func there(root string, path ...string) bool {
	_, err := os.Lstat(below(root, path...))
	return err == nil
}
