package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// connection is a TCP socket as sock_diag describes it.
type connection struct {
	local, remote  netip.AddrPort
	rtt, rttMin    time.Duration
	retransmits    uint64
	sent, received uint64
	segments       uint64
	deliveryRate   uint64
}

// addTo adds a connection to the counts of its port or peer. The path's figures are those of the
// last connection.
func (c *connection) addTo(s *Sockets) {
	s.Established++
	s.Retransmits += c.retransmits
	s.BytesSent += c.sent
	s.BytesReceived += c.received
	s.SegmentsSent += c.segments
	s.RTTLooks++
	s.RTTSum += c.rtt
	s.RTT, s.DeliveryRate = c.rtt, c.deliveryRate
	s.RTTMean += (c.rtt - s.RTTMean) / time.Duration(s.Established)
	if s.RTTMin == 0 || c.rttMin < s.RTTMin {
		s.RTTMin = c.rttMin
	}
}

// Constants of linux/inet_diag.h and sock_diag.h.
const (
	sockDiagByFamily = 20
	inetDiagInfo     = 2
	diagRequestLen   = 56 // struct inet_diag_req_v2
	diagMessageLen   = 72 // struct inet_diag_msg
	tcpEstablished   = 1
	tcpListen        = 10
	diagBuffer       = 64 << 10 // the kernel fills at most 32 KiB at a time
)

func established() ([]connection, error) {
	var all []connection
	err := diagnose(1<<tcpEstablished, true, func(c connection) { all = append(all, c) })
	return all, err
}

func listeningPorts() (map[uint16]bool, error) {
	ports := map[uint16]bool{}
	err := diagnose(1<<tcpListen, false, func(c connection) { ports[c.local.Port()] = true })
	return ports, err
}

// diagnose calls f for each TCP socket of the network namespace in one of the states.
func diagnose(states uint32, info bool, f func(connection)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return fmt.Errorf("bpf: ask sock_diag: %w", os.NewSyscallError("socket", err))
	}
	defer unix.Close(fd)
	wait := unix.Timeval{Sec: 5} // longer than the kernel takes to answer
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return fmt.Errorf("bpf: ask sock_diag: %w", err)
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if err := unix.Sendto(fd, diagRequest(family, states, info), 0,
			&unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return fmt.Errorf("bpf: ask sock_diag: %w", os.NewSyscallError("sendto", err))
		}
		if err := diagAnswers(fd, f); err != nil {
			return fmt.Errorf("bpf: ask sock_diag: %w", err)
		}
	}
	return nil
}

func diagRequest(family byte, states uint32, info bool) []byte {
	b := make([]byte, unix.SizeofNlMsghdr+diagRequestLen)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	r := b[unix.SizeofNlMsghdr:]
	r[0], r[1] = family, unix.IPPROTO_TCP
	if info {
		r[2] = 1 << (inetDiagInfo - 1)
	}
	binary.NativeEndian.PutUint32(r[4:], states)
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
	addr := func(b []byte) netip.Addr {
		if len(b) == 4 {
			return netip.AddrFrom4([4]byte(b))
		}
		return netip.AddrFrom16([16]byte(b)).Unmap()
	}
	width := 16
	if b[0] == unix.AF_INET {
		width = 4
	}
	c.local = netip.AddrPortFrom(addr(b[8:8+width]), binary.BigEndian.Uint16(b[4:]))
	c.remote = netip.AddrPortFrom(addr(b[24:24+width]), binary.BigEndian.Uint16(b[6:]))
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
	c.rtt, c.rttMin = time.Duration(i.Rtt)*time.Microsecond, time.Duration(i.Min_rtt)*time.Microsecond
	c.retransmits, c.received, c.deliveryRate = uint64(i.Total_retrans), i.Bytes_received, i.Delivery_rate
	c.sent, c.segments = i.Bytes_sent-min(i.Bytes_retrans, i.Bytes_sent), uint64(i.Data_segs_out)
}
