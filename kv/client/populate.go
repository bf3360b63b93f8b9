//go:build linux

package client

import (
	"context"
	"unsafe"

	"golang.org/x/sys/unix"
)

// populateStep is the part of the arena examined and mapped by one system call, in bytes.
const populateStep = 2 << 20

// populate maps the daemon's resident memory, so that the first read of a block does not fault at
// each piece. populate skips memory that the daemon has not used yet, because mapping would
// allocate that memory on this program's account.
func (a *arena) populate(ctx context.Context) {
	resident := make([]byte, populateStep/4096)
	for at := 0; at < len(a.data) && ctx.Err() == nil; at += populateStep {
		part := a.data[at:min(at+populateStep, len(a.data))]
		if allResident(part, resident) {
			_ = unix.Madvise(part, unix.MADV_POPULATE_READ) // if it fails, reads map the memory later
		}
	}
}

// allResident says whether all pages of a part of the arena are in memory, mapped here or not.
func allResident(part, resident []byte) bool {
	pages := (len(part) + 4095) / 4096
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&part[0])), uintptr(len(part)),
		uintptr(unsafe.Pointer(&resident[0])))
	if errno != 0 {
		return false
	}
	for _, r := range resident[:pages] {
		if r&1 == 0 {
			return false
		}
	}
	return true
}
