//go:build linux

package client

import (
	"context"
	"unsafe"

	"golang.org/x/sys/unix"
)

// populateStep is how much of the arena is looked at and mapped by one system call, in bytes.
const populateStep = 2 << 20

// populate maps what the daemon has in memory already, so that the first read of a block does not
// stop at each piece of it for the kernel. What the daemon has not used yet is left alone: mapping
// would take memory for it, on this program's account.
func (a *arena) populate(ctx context.Context) {
	resident := make([]byte, populateStep/4096)
	for at := 0; at < len(a.data) && ctx.Err() == nil; at += populateStep {
		part := a.data[at:min(at+populateStep, len(a.data))]
		if allResident(part, resident) {
			_ = unix.Madvise(part, unix.MADV_POPULATE_READ) // without it reads do the same, later
		}
	}
}

// allResident tells whether all pages of a part of the arena are in memory, be they mapped here or
// not.
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
