package listen

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Descriptors returns the file descriptors in the control data that came with a message on a Unix
// socket. With an error Descriptors returns those before it.
func Descriptors(control []byte) (fds []int, err error) {
	parts, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	for i := range parts {
		more, bad := unix.ParseUnixRights(&parts[i])
		fds, err = append(fds, more...), errors.Join(err, bad)
	}
	return fds, err
}

// CloseAll closes file descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
