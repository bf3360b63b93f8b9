package kvcached

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

// adviseDisk warns if the filesystem of the data directory has less room than the SSD tier may use.
// The directory need not exist yet. There is no warning if the room is not known.
func adviseDisk(data string, size config.Size) []string {
	at, err := filepath.Abs(data)
	var s unix.Statfs_t
	if err == nil {
		err = unix.Statfs(at, &s)
	}
	for err != nil && at != filepath.Dir(at) {
		at = filepath.Dir(at)
		err = unix.Statfs(at, &s)
	}
	if err != nil {
		return nil
	}
	room := config.Size(s.Bavail)*config.Size(s.Bsize) + diskUsed(filepath.Join(data, ssdDir))
	if room >= size {
		return nil
	}
	if room < ssd.LeastRoom {
		return []string{fmt.Sprintf("kvcached.ssd: the filesystem of %s has %s for the SSD tier, which needs %s to "+
			"start; make room there, name another filesystem with --data, or go without SSD with --ssd 0", data,
			gib(room), gib(ssd.LeastRoom))}
	}
	return []string{fmt.Sprintf("kvcached.ssd: %s is more than the %s that the filesystem of %s has for it; the "+
		"SSD tier works with smaller segments within that, and refuses durable writes where there is no room at all; "+
		"give less with --ssd, or name another filesystem with --data", given(size), gib(room), data)}
}

// diskUsed is the number of bytes that the files in dir take on the disk.
func diskUsed(dir string) (sum config.Size) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := e.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				sum += config.Size(st.Blocks) * 512
			}
		}
		return nil
	})
	return sum
}
