package ssd

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// rowRoom is what the filesystem must have free before the rows are opened, in bytes: what waits in
// the rows' log is written to tables then, and without room for them that is tried again without
// end.
const rowRoom = 4 * rowMemory

// freeBytes is what the filesystem of dir has left. fileSystems that have no Free are taken to have
// enough.
func freeBytes(o *Options) (int64, error) {
	if f, ok := o.fs.(interface {
		Free(dir string) (int64, error)
	}); ok {
		return f.Free(o.Dir)
	}
	return rowRoom, nil
}

// Free is how many bytes may be written in dir's filesystem.
func (osFS) Free(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// makeRowRoom deletes segments on a full filesystem, the ballast, spare files and then the oldest
// first, until the rows can be opened. Their blocks are misses then, as those of a segment that is
// lost: their rows say that they were the newest.
func makeRowRoom(o *Options) error {
	free, err := freeBytes(o)
	if err != nil || free >= rowRoom {
		return err
	}
	names, err := o.fs.List(o.Dir)
	if err != nil {
		return err
	}
	slices.SortFunc(names, func(a, b string) int {
		x, _ := segmentID(a)
		y, _ := segmentID(b)
		return int(x) - int(y)
	})
	for _, name := range names {
		if _, ok := segmentID(name); !ok && !strings.HasPrefix(name, sparePrefix) && name != ballastFile {
			continue
		}
		o.Logger.Error("ssd: the filesystem is full; a file is deleted so that the index can be opened", "file", name,
			"free_bytes", free)
		if err := o.fs.Remove(filepath.Join(o.Dir, name)); err != nil {
			return err
		}
		if free, err = freeBytes(o); err != nil || free >= rowRoom {
			return err
		}
	}
	return fmt.Errorf("%w: %s needs %d MiB free to be opened; make room there", syscall.ENOSPC, o.Dir, rowRoom>>20)
}
