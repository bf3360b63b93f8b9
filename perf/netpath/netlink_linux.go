package netpath

import (
	"encoding/binary"
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ask sends a request to the kernel's rtnetlink, in the namespace of the calling thread, and
// returns the answers.
func ask(kind, flags uint16, body []byte) ([]syscall.NetlinkMessage, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	m := word(uint32(unix.SizeofNlMsghdr + len(body)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	m = append(append(append(m, word(1)...), word(0)...), body...)
	if err := unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	var answers []syscall.NetlinkMessage
	for {
		buf := make([]byte, 64<<10)
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return nil, os.NewSyscallError("recvfrom", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return nil, os.NewSyscallError("rtnetlink", err)
		}
		for _, a := range messages {
			if a.Header.Type != unix.NLMSG_ERROR && a.Header.Type != unix.NLMSG_DONE {
				answers = append(answers, a)
				continue
			}
			if len(a.Data) < 4 {
				return nil, errors.New("rtnetlink: a status without a number")
			}
			if code := int32(binary.NativeEndian.Uint32(a.Data)); code != 0 {
				return nil, os.NewSyscallError("rtnetlink", syscall.Errno(-code))
			}
			return answers, nil
		}
	}
}

// attribute appends a netlink attribute to b.
func attribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, align(len(value))-len(value))...)
}

func align(n int) int { return (n + 3) &^ 3 }

func word(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
