package netpath

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// relay has a TUN device on each side, and two goroutines per direction between them.
type relay struct {
	conditions atomic.Pointer[Conditions]
	tuns       []*os.File
	ab, ba     *line
	wait       sync.WaitGroup
}

func newRelay(a, b *Side, o Options) (link, error) {
	r := &relay{}
	r.conditions.Store(&o.Conditions)
	for _, s := range []*Side{a, b} {
		var tun *os.File
		var err error
		s.Do(func() { tun, err = s.tun(o.Queue) })
		if err != nil {
			r.shut()
			return nil, err
		}
		r.tuns = append(r.tuns, tun)
	}
	r.ab = newLine(r.tuns[0], r.tuns[1], &r.conditions, o.Queue, o.Seed)
	r.ba = newLine(r.tuns[1], r.tuns[0], &r.conditions, o.Queue, o.Seed+1)
	for _, l := range []*line{r.ab, r.ba} {
		r.wait.Go(l.read)
		r.wait.Go(l.write)
	}
	return r, nil
}

func (r *relay) set(c Conditions) { r.conditions.Store(&c) }

func (r *relay) counts() (ab, ba Counts) { return r.ab.counts(), r.ba.counts() }

func (r *relay) shut() {
	for _, tun := range r.tuns {
		if err := tun.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			panic(err) // a bug in the use of a device
		}
	}
	r.wait.Wait()
}

// tun makes the TUN device in the namespace of the calling thread.
func (s *Side) tun(queue int) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	ifr, err := unix.NewIfreq(device)
	if err == nil {
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = os.NewSyscallError("TUNSETIFF", unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr))
	}
	if err == nil {
		err = s.configure(queue)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), device), nil
}
