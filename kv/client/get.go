//go:build linux

package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/frame"
)

// Tiers is a set of the daemon's tiers.
type Tiers uint8

// These are the tiers.
const (
	RAM Tiers = 1 << iota
	SSD
)

// Info is the daemon's knowledge of a block.
type Info struct {
	Length int    // bytes
	CRC    uint32 // CRC32C of the payload
	Tiers  Tiers  // tiers that hold it; 0: none
	Uses   uint32 // number of Gets since the block came into RAM
}

// Get takes a lease on a block. Get returns ErrMiss if the daemon has no block with this address.
// Get counts as a use.
func (c *Client) Get(ctx context.Context, a block.Addr) (*View, error) {
	s, err := c.pool.get(ctx)
	if err != nil {
		return nil, err
	}
	v, err := s.get(ctx, &a)
	c.done(s, err)
	return v, err
}

func (s *socket) get(ctx context.Context, a *block.Addr) (*View, error) {
	s.begin(frame.OpGet, 1)
	s.out = frame.AppendAddr(s.out, a)
	h, body, err := s.exchange(ctx)
	if err != nil {
		return nil, err
	}
	if h.Count != 1 {
		return nil, s.nonsense()
	}
	v := new(View)
	return v, s.view(frame.ParseGrant(body, 0), v)
}

// view fills v from the daemon's answer.
func (s *socket) view(g frame.Grant, v *View) error {
	if g.Status != frame.StatusOK {
		return errorOf(g.Status)
	}
	if size := uint64(len(s.arena.data)); g.Offset > size || uint64(g.Length) > size-g.Offset {
		return s.nonsense()
	}
	s.arena.refs.Add(1)
	v.socket, v.arena, v.lease, v.crc = s, s.arena, g.Lease, g.CRC
	v.bytes = s.arena.data[g.Offset:][:g.Length:g.Length]
	v.deadline = g.DeadlineNS
	return nil
}

func (s *socket) nonsense() error {
	s.kill()
	return fmt.Errorf("%w: an answer that makes no sense", ErrProtocol)
}

// Read calls use with a block's bytes while they are under a lease. Read returns the error of use,
// if use fails. Nil means that the bytes passed to use were the block's. Do not use a result of use
// after an error.
func (c *Client) Read(ctx context.Context, a block.Addr, use func(payload []byte) error) error {
	v, err := c.Get(ctx, a)
	if err != nil {
		return err
	}
	err = use(v.Bytes())
	return errors.Join(err, v.Close())
}

// GetMany takes leases on several blocks. The View of a missing block is nil. Up to frame.MaxBatch
// addresses cost one round trip. After an error GetMany holds no lease.
func (c *Client) GetMany(ctx context.Context, addrs []block.Addr) ([]*View, error) {
	views := make([]*View, 0, len(addrs))
	err := c.batches(ctx, frame.OpGet, nil, addrs, func(s *socket, h frame.Header, body []byte) error {
		batch := make([]View, h.Count)
		var failed error
		for i := range batch {
			switch err := s.view(frame.ParseGrant(body, i), &batch[i]); {
			case err == nil:
				views = append(views, &batch[i])
			case errors.Is(err, ErrMiss):
				views = append(views, nil)
			default:
				failed = err
			}
		}
		return failed
	})
	if err != nil {
		for _, v := range views {
			if v != nil {
				_ = v.Close()
			}
		}
		return nil, err
	}
	return views, nil
}

// batches sends op for all addresses, as many in one frame as fit. The fixed bytes precede the
// addresses in each frame.
func (c *Client) batches(ctx context.Context, op frame.Op, fixed []byte, addrs []block.Addr,
	take func(*socket, frame.Header, []byte) error) error {
	s, err := c.pool.get(ctx)
	if err != nil {
		return err
	}
	for len(addrs) > 0 && err == nil {
		n := min(len(addrs), frame.MaxBatch)
		s.begin(op, n)
		s.out = append(s.out, fixed...)
		for i := range addrs[:n] {
			s.out = frame.AppendAddr(s.out, &addrs[i])
		}
		addrs = addrs[n:]
		if op == frame.OpTouch {
			err = s.send()
			continue
		}
		var h frame.Header
		var body []byte
		switch h, body, err = s.exchange(ctx); {
		case err != nil:
		case int(h.Count) != n:
			err = s.nonsense()
		case h.Status != frame.StatusOK:
			err = errorOf(h.Status)
		default:
			err = take(s, h, body)
		}
	}
	c.done(s, err)
	return err
}

// Stat returns the Info of a block, without a lease and without counting as a use. Stat returns
// ErrMiss for a missing block.
func (c *Client) Stat(ctx context.Context, a block.Addr) (Info, error) {
	infos, err := c.StatMany(ctx, []block.Addr{a})
	if err != nil {
		return Info{}, err
	}
	if infos[0].Tiers == 0 {
		return Info{}, ErrMiss
	}
	return infos[0], nil
}

// StatMany is Stat for several blocks. The Info of a missing block is zero.
func (c *Client) StatMany(ctx context.Context, addrs []block.Addr) ([]Info, error) {
	infos := make([]Info, 0, len(addrs))
	err := c.batches(ctx, frame.OpStat, nil, addrs, func(_ *socket, h frame.Header, body []byte) error {
		for i := range int(h.Count) {
			infos = append(infos, infoOf(frame.ParseInfo(body, i)))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return infos, nil
}

func infoOf(f frame.Info) Info {
	return Info{Length: int(f.Length), CRC: f.CRC, Tiers: Tiers(f.Tiers), Uses: f.Uses}
}

// Delete removes blocks from all tiers and returns how many existed.
func (c *Client) Delete(ctx context.Context, addrs ...block.Addr) (deleted int, err error) {
	return c.counted(ctx, frame.OpDelete, nil, addrs)
}

// Pin keeps blocks from being evicted until the given time, at most 24 hours ahead (else ErrPin).
// Pin skips missing blocks and returns the number of pinned blocks. A pin outlives the Client.
func (c *Client) Pin(ctx context.Context, until time.Time, addrs ...block.Addr) (pinned int, err error) {
	return c.counted(ctx, frame.OpPin, binary.LittleEndian.AppendUint64(nil, uint64(until.UnixMilli())), addrs)
}

// Unpin ends pins made by a Client of this name and user.
func (c *Client) Unpin(ctx context.Context, addrs ...block.Addr) error {
	_, err := c.counted(ctx, frame.OpUnpin, nil, addrs)
	return err
}

// counted sends op for all addresses, and returns for how many op succeeded.
func (c *Client) counted(ctx context.Context, op frame.Op, fixed []byte, addrs []block.Addr) (n int, err error) {
	err = c.batches(ctx, op, fixed, addrs, func(_ *socket, _ frame.Header, statuses []byte) (failed error) {
		for _, b := range statuses {
			switch e := errorOf(frame.Status(b)); {
			case e == nil:
				n++
			case !errors.Is(e, ErrMiss):
				failed = e
			}
		}
		return failed
	})
	return n, err
}

// Touch reports that a prompt's blocks were used, in order. The daemon does not answer.
func (c *Client) Touch(ctx context.Context, addrs []block.Addr) error {
	return c.batches(ctx, frame.OpTouch, nil, addrs, nil)
}

// send sends a request without an answer.
func (s *socket) send() error {
	s.seq--
	if _, err := s.net.Write(frame.End(s.out, s.start)); err != nil {
		return s.gone(err)
	}
	return nil
}

// Ping says whether the daemon answers.
func (c *Client) Ping(ctx context.Context) error {
	s, err := c.pool.get(ctx)
	if err != nil {
		return err
	}
	s.begin(frame.OpPing, 0)
	_, _, err = s.exchange(ctx)
	c.done(s, err)
	return err
}
