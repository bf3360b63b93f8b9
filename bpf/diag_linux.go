package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// connection is a TCP socket as sock_diag describes it.
type connection struct {
	port        uint16 // local
	rtt         time.Duration
	retransmits uint64
	segments    uint64
}

// addTo adds a connection to the counts of its port.
func (c *connection) addTo(s *Sockets) {
	s.Established++
	s.Retransmits += c.retransmits
	s.SegmentsSent += c.segments
	s.RTTLooks++
	s.RTTSum += c.rtt
}

// Constants of linux/inet_diag.h and sock_diag.h.
const (
	sockDiagByFamily = 20
	inetDiagInfo     = 2
	diagRequestLen   = 56 // struct inet_diag_req_v2
	diagMessageLen   = 72 // struct inet_diag_msg
	tcpEstablished   = 1
	diagBuffer       = 64 << 10 // the kernel fills at most 32 KiB at a time
)

// established returns the established TCP connections of the network namespace.
func established() (all []connection, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("bpf: ask sock_diag: %w", os.NewSyscallError("socket", err))
	}
	defer unix.Close(fd)
	wait := unix.Timeval{Sec: 5} // longer than the kernel takes to answer
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return nil, fmt.Errorf("bpf: ask sock_diag: %w", err)
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if err := unix.Sendto(fd, diagRequest(family), 0,
			&unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return nil, fmt.Errorf("bpf: ask sock_diag: %w", os.NewSyscallError("sendto", err))
		}
		if err := diagAnswers(fd, func(c connection) { all = append(all, c) }); err != nil {
			return nil, fmt.Errorf("bpf: ask sock_diag: %w", err)
		}
	}
	return all, nil
}

func diagRequest(family byte) []byte {
	b := make([]byte, unix.SizeofNlMsghdr+diagRequestLen)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	r := b[unix.SizeofNlMsghdr:]
	r[0], r[1], r[2] = family, unix.IPPROTO_TCP, 1<<(inetDiagInfo-1)
	binary.NativeEndian.PutUint32(r[4:], 1<<tcpEstablished)
	return b
}

// diagAnswers reads until the kernel marks the end.
func diagAnswers(fd int, f func(connection)) error {
	buf := make([]byte, diagBuffer)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		done, err := diagMessages(buf[:n], f)
		if done || err != nil {
			return err
		}
	}
}

var errDiag = errors.New("an answer of sock_diag is cut off")

// diagMessages calls f for each socket of a datagram.
func diagMessages(b []byte, f func(connection)) (done bool, err error) {
	for len(b) >= unix.SizeofNlMsghdr {
		size, kind := int(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint16(b[4:])
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return true, errDiag
		}
		body := b[unix.SizeofNlMsghdr:size]
		switch kind {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if len(body) < 4 {
				return true, errDiag
			}
			if errno := -int32(binary.NativeEndian.Uint32(body)); errno > 0 {
				return true, unix.Errno(errno)
			}
		case sockDiagByFamily:
			c, err := parseDiag(body)
			if err != nil {
				return true, err
			}
			f(c)
		}
		b = b[min(aligned(size), len(b)):]
	}
	return false, nil
}

func aligned(n int) int { return (n + 3) &^ 3 }

// parseDiag reads a struct inet_diag_msg and its attributes.
func parseDiag(b []byte) (c connection, err error) {
	if len(b) < diagMessageLen {
		return c, errDiag
	}
	c.port = binary.BigEndian.Uint16(b[4:])
	for attrs := b[diagMessageLen:]; len(attrs) >= 4; {
		size, kind := int(binary.NativeEndian.Uint16(attrs)), binary.NativeEndian.Uint16(attrs[2:])
		if size < 4 || size > len(attrs) {
			return c, errDiag
		}
		if kind == inetDiagInfo {
			c.take(attrs[4:size])
		}
		attrs = attrs[min(aligned(size), len(attrs)):]
	}
	return c, nil
}

// take reads a struct tcp_info of any length: older kernels have fewer fields.
func (c *connection) take(b []byte) {
	var i unix.TCPInfo
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&i)), unsafe.Sizeof(i)), b)
	c.rtt = time.Duration(i.Rtt) * time.Microsecond
	c.retransmits, c.segments = uint64(i.Total_retrans), uint64(i.Data_segs_out)
}
