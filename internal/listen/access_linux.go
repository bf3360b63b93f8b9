package listen

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Access says who may use a Unix socket besides root and the user of this process, whatever the
// file's mode lets through.
type Access struct{ uids, gids []uint32 }

// AccessTo is that of the socket at path: for these users and groups, and the group of the file.
func AccessTo(path string, uids, gids []uint32) Access {
	a := Access{slices.Clone(uids), slices.Clone(gids)}
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK {
		a.gids = append(a.gids, st.Gid)
	}
	return a
}

// Check asks the kernel who is at the other end of a connection, and tells whether they may use it:
// for their user, or for one of their groups, the first 1,024 supplementary ones included.
func (a *Access) Check(connection syscall.RawConn) (p Peer, allowed bool, err error) {
	if p, err = PeerOf(connection); err != nil {
		return p, false, err
	}
	if p.UID == 0 || p.UID == uint32(os.Geteuid()) || slices.Contains(a.uids, p.UID) || slices.Contains(a.gids, p.GID) {
		return p, true, nil
	}
	if len(a.gids) == 0 {
		return p, false, nil
	}
	var groups []uint32
	controlErr := connection.Control(func(fd uintptr) { groups, err = peerGroups(fd) })
	allowed = slices.ContainsFunc(groups, func(g uint32) bool { return slices.Contains(a.gids, g) })
	return p, allowed, errors.Join(controlErr, err)
}

// maxGroups is how many supplementary groups of a peer are looked at.
const maxGroups = 1024

func peerGroups(fd uintptr) ([]uint32, error) {
	groups := make([]uint32, maxGroups)
	size := uint32(4 * len(groups))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
		uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return nil, errno
	}
	return groups[:size/4], nil
}
