package listen

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Access lists who may use a Unix socket besides root and the user of this process. Access
// restricts further than the file's mode.
type Access struct{ uids, gids []uint32 }

// AccessTo returns the access to the socket at path: for these users and groups, and for the group
// of the file.
func AccessTo(path string, uids, gids []uint32) Access {
	a := Access{slices.Clone(uids), slices.Clone(gids)}
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK {
		a.gids = append(a.gids, st.Gid)
	}
	return a
}

// Check asks the kernel for the peer of a connection, and tells whether the peer may use it, by its
// user or one of its groups. Check checks at most 1,024 supplementary groups.
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

// maxGroups is how many supplementary groups of a peer are checked.
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
