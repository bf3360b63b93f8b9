package stopwatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// packets are the packets to or from a port of this host over the loopback interface, each with its
// time.
type packets struct {
	fd  int
	buf [1 << 16]byte
}

// queued is the kernel's buffer for packets that were not read, in bytes. The buffer is read after
// each stream. A loss of packets is an error.
const queued = 8 << 20

// watch begins to receive the packets of a port. watch needs CAP_NET_RAW, and CAP_NET_ADMIN for the
// size of the buffer.
func watch(port uint16) (*packets, error) {
	protocol := binary.NativeEndian.Uint16([]byte{unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff})
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(protocol))
	if err != nil {
		return nil, err
	}
	p := &packets{fd: fd}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queued),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING,
			unix.SOF_TIMESTAMPING_RX_SOFTWARE|unix.SOF_TIMESTAMPING_SOFTWARE),
		p.stamped(),
		p.only(port),
	)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return p, nil
}

// stamped waits until packets have times. The kernel begins to record packets' times a moment after
// the request.
func (p *packets) stamped() error {
	own, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(own) }()
	if err := unix.Bind(own, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	to, err := unix.Getsockname(own)
	if err != nil {
		return err
	}
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if err := unix.Sendto(own, []byte{0}, 0, to); err != nil {
			return err
		}
		for {
			_, at, err := p.next()
			if err == nil && !at.IsZero() {
				return nil
			}
			if err != nil {
				break
			}
		}
		_, _ = unix.Poll(nil, 1) // leaves this CPU to the kernel, which starts it there
	}
	return errors.New("the kernel does not say when packets come")
}

// only filters out all other packets from now on.
func (p *packets) only(port uint16) error {
	const drop, pass = 8, 7
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 9}, // load the protocol
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_TCP, Jf: drop - 2},
		{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: 0}, // load the start of the TCP header
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: 0},  // load the source port
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jt: pass - 5},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: 2}, // load the destination port
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jf: drop - 7},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	return unix.SetsockoptSockFprog(p.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// next returns the next packet, from its IP header on, and its time. The packet is valid until the
// next call. The time is zero if the kernel has not recorded it.
func (p *packets) next() (ip []byte, at time.Time, err error) {
	var oob [256]byte
	n, controls, _, _, err := unix.Recvmsg(p.fd, p.buf[:], oob[:], 0)
	if err != nil {
		return nil, at, err
	}
	all, err := unix.ParseSocketControlMessage(oob[:controls])
	if err != nil {
		return nil, at, err
	}
	for _, c := range all {
		if c.Header.Level == unix.SOL_SOCKET && c.Header.Type == unix.SCM_TIMESTAMPING &&
			len(c.Data) >= int(unsafe.Sizeof(unix.ScmTimestamping{})) {
			at = time.Unix((*unix.ScmTimestamping)(unsafe.Pointer(&c.Data[0])).Ts[0].Unix())
		}
	}
	return p.buf[:n], at, nil
}

// stream adds the times of an ended stream between the engine's port and the client's port. The
// clock must not have been set since the stream began.
func (p *packets) stream(s *pieces, engine, client uint16) error {
	next := map[uint16]uint32{} // next sequence number of each port
	for {
		ip, at, err := p.next()
		if err == unix.EAGAIN {
			break
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		from, to, seq, payload := segment(ip)
		end := seq + uint32(len(payload))
		goesOn, begun := next[from]
		if len(payload) == 0 || from != engine && to != engine || from != client && to != client ||
			begun && int32(end-goesOn) <= 0 {
			continue // a packet without new bytes of this stream
		}
		if at.IsZero() {
			return errors.New("the kernel does not say when a packet came")
		}
		if to == engine && !begun {
			s.ask(at)
		}
		if from == engine {
			s.tokens(at, bytes.Count(payload, token))
		}
		next[from] = end
	}
	lost, err := unix.GetsockoptTpacketStats(p.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err == nil && lost.Drops > 0 {
		err = fmt.Errorf("%d packets were not seen", lost.Drops)
	}
	return err
}

// segment parses a packet of IPv4 and TCP. payload is empty for other packets.
func segment(ip []byte) (from, to uint16, seq uint32, payload []byte) {
	if len(ip) < 20 || ip[9] != unix.IPPROTO_TCP {
		return
	}
	total, head := int(binary.BigEndian.Uint16(ip[2:])), int(ip[0]&15)*4
	if total > len(ip) || head+20 > total {
		return
	}
	tcp := ip[head:total]
	if rest := int(tcp[12]>>4) * 4; rest <= len(tcp) {
		payload = tcp[rest:]
	}
	return binary.BigEndian.Uint16(tcp), binary.BigEndian.Uint16(tcp[2:]), binary.BigEndian.Uint32(tcp[4:]), payload
}
