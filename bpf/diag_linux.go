package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
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
)

// errDiag means that a message of sock_diag, or an attribute in it, is cut off.
var errDiag = errors.New("an answer of sock_diag is cut off")

// The library finds out the byte order at the first use, without a lock.
var _ = nl.NativeEndian()

// established returns the established TCP connections of the network namespace.
func established() (all []connection, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		ask := nl.NewNetlinkRequest(sockDiagByFamily, unix.NLM_F_DUMP)
		ask.AddRawData(diagRequest(family))
		var unreadable error
		err := ask.ExecuteIter(unix.NETLINK_SOCK_DIAG, sockDiagByFamily, func(message []byte) bool {
			var c connection
			c, unreadable = parseDiag(message)
			all = append(all, c)
			return unreadable == nil
		})
		if errors.Is(err, nl.ErrDumpInterrupted) {
			err = nil // sockets came or went meanwhile
		}
		if err = errors.Join(err, unreadable); err != nil {
			return nil, fmt.Errorf("bpf: ask sock_diag: %w", err)
		}
	}
	return all, nil
}

// diagRequest makes a struct inet_diag_req_v2.
func diagRequest(family byte) []byte {
	r := make([]byte, diagRequestLen)
	r[0], r[1], r[2] = family, unix.IPPROTO_TCP, 1<<(inetDiagInfo-1)
	binary.NativeEndian.PutUint32(r[4:], 1<<tcpEstablished)
	return r
}

// parseDiag reads a struct inet_diag_msg and its attributes.
func parseDiag(b []byte) (c connection, err error) {
	if len(b) < diagMessageLen {
		return c, errDiag
	}
	c.port = binary.BigEndian.Uint16(b[4:])
	// nl.ParseRouteAttr panics if the last attribute ends within its padding.
	for b = b[diagMessageLen:]; len(b) >= unix.SizeofRtAttr; {
		n, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if n < unix.SizeofRtAttr || n > len(b) {
			return c, errDiag
		}
		if kind == inetDiagInfo {
			c.take(b[unix.SizeofRtAttr:n])
		}
		b = b[min((n+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1), len(b)):]
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
