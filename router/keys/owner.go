package keys

import (
	"io/fs"
	"syscall"
)

type owner struct{ uid, gid int }

// ownerOf returns who owns a file.
func ownerOf(info fs.FileInfo) (owner, bool) {
	at, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return owner{}, false
	}
	return owner{int(at.Uid), int(at.Gid)}, true
}
