package relay

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// poller waits for hang-ups on many sockets. poller's epoll descriptor is in the runtime's poller,
// so that waiting takes no thread.
type poller struct {
	file   *os.File
	raw    syscall.RawConn
	fd     int
	events [128]unix.EpollEvent
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &poller{file: os.NewFile(uintptr(fd), "epoll"), fd: fd}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		p.file.Close()
		return nil, err
	}
	return p, nil
}

// add asks for one event when the peer of fd shuts down or resets. The event is edge triggered, so
// bytes that arrive meanwhile wake nobody.
func (p *poller) add(fd int, id uint64) error {
	return unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{
		Events: unix.EPOLLRDHUP | unix.EPOLLET&0xffffffff, // hang-ups and errors are always reported
		Fd:     int32(uint32(id)),
		Pad:    int32(uint32(id >> 32)),
	})
}

func (p *poller) remove(fd int) {
	unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil)
}

// run calls event with the id of each socket whose peer has left. run returns after close or an
// error.
func (p *poller) run(event func(id uint64)) (failed error) {
	err := p.raw.Read(func(fd uintptr) bool {
		for {
			n, err := unix.EpollWait(int(fd), p.events[:], 0)
			if err == unix.EINTR {
				continue
			}
			if n <= 0 {
				failed = os.NewSyscallError("epoll_wait", err)
				return err != nil
			}
			for _, e := range p.events[:n] {
				event(uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32)
			}
		}
	})
	if failed == nil {
		failed = err
	}
	return failed
}

func (p *poller) close() { p.file.Close() }
