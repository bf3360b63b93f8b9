package resp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// transferMax bounds the bytes of one system call. Copying that many takes about 600 us.
const transferMax = 4<<20 + 64<<10

// vector does readv or writev on a socket that does not block. It hides the system call, which only
// copies, from the runtime. Otherwise the runtime would give the processor to another thread in the
// middle of each large copy.
func vector(call, fd uintptr, pieces [][]byte) (int, unix.Errno) {
	var iov [3]unix.Iovec
	n, room := 0, transferMax
	for _, p := range pieces {
		if len(p) > room {
			p = p[:room]
		}
		if len(p) > 0 {
			iov[n].Base = unsafe.SliceData(p)
			iov[n].SetLen(len(p))
			n++
			room -= len(p)
		}
	}
	for {
		done, _, errno := unix.RawSyscall(call, fd, uintptr(unsafe.Pointer(&iov)), uintptr(n))
		if errno != unix.EINTR {
			return int(done), errno
		}
	}
}
