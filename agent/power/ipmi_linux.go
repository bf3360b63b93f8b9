package power

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's IPMI interface, include/uapi/linux/ipmi.h, on 64-bit machines.
const (
	ipmiSendCommand  = 2<<30 | unsafe.Sizeof(ipmiRequest{})<<16 | 'i'<<8 | 13 // _IOR('i', 13, struct ipmi_req)
	ipmiReceiveTrunc = 3<<30 | unsafe.Sizeof(ipmiAnswer{})<<16 | 'i'<<8 | 11  // _IOWR('i', 11, struct ipmi_recv)

	ipmiSystemInterface = 0x0c
	ipmiBMCChannel      = 0x0f
	ipmiResponse        = 1   // value of recv_type in an answer
	ipmiMaxMessage      = 272 // IPMI_MAX_MSG_LENGTH
)

type ipmiAddress struct {
	kind    int32
	channel int16
	lun     uint8
	_       [29]byte // struct ipmi_addr has room for other address types
}

type ipmiMessage struct {
	netfn, cmd uint8
	length     uint16
	data       *byte
}

type ipmiRequest struct {
	address       *ipmiAddress
	addressLength uint32
	id            int64
	message       ipmiMessage
}

type ipmiAnswer struct {
	kind          int32
	address       *ipmiAddress
	addressLength uint32
	id            int64
	message       ipmiMessage
}

// ipmiDevice is /dev/ipmi0. The struct holds all memory whose address the kernel gets. ipmiDevice
// lies on the heap and does not move.
type ipmiDevice struct {
	file    *os.File
	raw     syscall.RawConn
	request ipmiRequest
	answer  ipmiAnswer
	to, by  ipmiAddress
	out     [32]byte
	in      [ipmiMaxMessage]byte
}

func openIPMI(path string) (port, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &ipmiDevice{file: f, raw: raw}, nil
}

func (d *ipmiDevice) Close() error { return d.file.Close() }

func (d *ipmiDevice) send(id int64, netfn, cmd byte, data []byte) error {
	n := copy(d.out[:], data)
	d.to = ipmiAddress{kind: ipmiSystemInterface, channel: ipmiBMCChannel}
	d.request = ipmiRequest{
		address: &d.to, addressLength: uint32(unsafe.Offsetof(d.to.lun)) + 2, id: id,
		message: ipmiMessage{netfn: netfn, cmd: cmd, length: uint16(n), data: &d.out[0]},
	}
	var errno syscall.Errno
	if err := d.raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, ipmiSendCommand, uintptr(unsafe.Pointer(&d.request)))
	}); err != nil {
		return err
	}
	runtime.KeepAlive(d)
	if errno != 0 {
		return fmt.Errorf("%s takes no command: %w", d.file.Name(), errno)
	}
	return nil
}

func (d *ipmiDevice) receive(ctx context.Context) (message, error) {
	deadline, _ := ctx.Deadline()
	if err := d.file.SetReadDeadline(deadline); err != nil {
		return message{}, fmt.Errorf("%s cannot be waited for: %w", d.file.Name(), err)
	}
	stop := context.AfterFunc(ctx, func() { _ = d.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	d.answer = ipmiAnswer{address: &d.by, addressLength: uint32(unsafe.Sizeof(d.by)),
		message: ipmiMessage{length: uint16(len(d.in)), data: &d.in[0]}}
	var errno syscall.Errno
	err := d.raw.Read(func(fd uintptr) (done bool) {
		for errno = unix.EINTR; errno == unix.EINTR; {
			_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, ipmiReceiveTrunc, uintptr(unsafe.Pointer(&d.answer)))
		}
		return errno != unix.EAGAIN
	})
	runtime.KeepAlive(d)
	switch {
	case err != nil:
		return message{}, fmt.Errorf("the BMC does not answer: %w", err)
	case errno != 0:
		return message{}, fmt.Errorf("%s: %w", d.file.Name(), errno)
	}
	m := message{id: d.answer.id, netfn: d.answer.message.netfn, cmd: d.answer.message.cmd,
		data: d.in[:min(int(d.answer.message.length), len(d.in))]}
	if d.answer.kind != ipmiResponse {
		m.id = 0 // an event or another program's command: no answer to a question
	}
	return m, nil
}
