package devices

import (
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

// maxText bounds a file of sysfs, which writes at most a page; maxTable those of proc with a line
// for each address.
const (
	maxText  = 4 << 10
	maxTable = 1 << 20
)

const classDir = "/sys/class/infiniband"

var errLong = errors.New("devices: file is longer than any of its kind")

// rdmamapLock guards rdmamap's package variables, in which it has its folders. Nothing else of this
// module imports it.
var rdmamapLock sync.Mutex

// mapped runs look with rdmamap looking below root.
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

// below is a path of the host in root.
func below(root string, path ...string) string {
	if root == "" {
		root = "/"
	}
	return filepath.Join(root, filepath.Join(path...))
}

// text is what a small file says, without the newline; empty if it cannot be read, as rows of a GID
// table that are not in use.
func text(dir, name string) string {
	b, err := read(filepath.Join(dir, name), maxText)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// read is the whole of a file of at most limit bytes.
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

// linked is the last part of what a link points to.
func linked(dir, name string) string {
	to, err := os.Readlink(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// numbered is the files of a folder whose names are numbers, in their order, at most limit.
func numbered(dir string, limit int) (all []int) {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(limit) // what came before an error counts
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil && n >= 0 {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all
}

// there says whether the host has a file.
func there(root string, path ...string) bool {
	_, err := os.Lstat(below(root, path...))
	return err == nil
}
