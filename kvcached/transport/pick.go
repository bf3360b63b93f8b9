package transport

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
)

// The blocks of a Grant are looked up several at a time, because SSD takes a while. A block that
// takes longer than getIn goes by stream, so that the others do not wait for it.
const (
	gettingAtOnce = 8
	getIn         = 50 * time.Millisecond
)

// picked is a block that will be granted. It counts as in flight until uncount.
type picked struct {
	Block   // nil: the block has a status instead
	uncount func()
}

func (p *picked) drop() {
	p.Release()
	p.uncount()
	p.Block = nil
}

// take adds the blocks that can be granted to g and to the answer.
func (s *session) take(ctx context.Context, g *grant, addrs []block.Addr, out *wire.Granted) {
	got := s.pick(ctx, addrs, out)
	size := 0
	for i := range got {
		b := &got[i]
		if b.Block == nil {
			continue
		}
		e := &out.Blocks[i]
		if e.Status = s.admit(g, b, e, wire.MaxSmall-64-len(addrs)-size); e.Status != wire.OK {
			b.drop()
			continue
		}
		s.granter.s.keyRead(b.Found().Item.Namespace)
		size += e.Size()
	}
	if !s.open(ctx, g, got, out) {
		g.forget()
		g.windows, g.granted, g.bytes = make([][]rdma.Window, len(s.ends)), 0, 0
		for i := range got {
			if got[i].Block != nil {
				out.Blocks[i] = wire.GrantedBlock{Status: wire.ByStream}
			}
		}
	}
}

// pick looks up the blocks.
func (s *session) pick(ctx context.Context, addrs []block.Addr, out *wire.Granted) []picked {
	got, infos := make([]picked, len(addrs)), make([]wire.Info, len(addrs))
	brief, cancel := context.WithTimeout(context.WithValue(ctx, remoteKey{}, s.remote), getIn)
	defer cancel()
	one := func(i int) {
		err := s.pickOne(brief, addrs[i:i+1], infos[i:i+1], &got[i])
		if err == nil {
			return
		}
		status := statusOf(err)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			status = wire.ByStream
		case status == wire.Internal && ctx.Err() == nil:
			s.granter.s.failed(wire.Grant, s.remote, err)
		}
		out.Blocks[i].Status = status
	}
	var all errgroup.Group
	all.SetLimit(gettingAtOnce)
	for i := range addrs {
		all.Go(func() error { one(i); return nil })
	}
	_ = all.Wait()
	return got
}

// pickOne looks up a block. It counts the block's length first, so that a block without room does
// not come into RAM.
func (s *session) pickOne(ctx context.Context, a []block.Addr, info []wire.Info, to *picked) error {
	h := s.granter.s.o.Handler
	if err := h.Stat(ctx, a, info); err != nil {
		return err
	}
	uncount, err := s.granter.s.holdGranted(s.host, int(info[0].Length))
	if err != nil {
		return err
	}
	b, err := h.Get(ctx, a[0])
	switch {
	case err != nil:
	case len(b.Bytes()) != int(info[0].Length): // the block has been replaced since
		b.Release()
		err = wire.ByStream
	default:
		*to = picked{b, uncount}
		return nil
	}
	uncount()
	return err
}

// admit adds a block to the grant, and describes it in at most room bytes. The windows of its parts
// are made later.
func (s *session) admit(g *grant, b *picked, e *wire.GrantedBlock, room int) wire.Status {
	payload, f := b.Bytes(), b.Found()
	if !s.granter.rails.holds(payload) {
		return wire.ByStream
	}
	*e = wire.GrantedBlock{CRC: f.CRC, Length: uint64(len(payload)), Parent: f.Item.Parent, Expires: f.Item.Expires,
		Key: f.Item.Key, Attr: f.Item.Attr}
	s.split(e)
	if e.Size() > room || !s.granter.s.o.Bandwidth.take(outward, len(payload)) { // the others would wait for it
		return wire.ByStream
	}
	g.blocks, g.held = append(g.blocks, b.Block), append(g.held, b.uncount)
	g.granted, g.bytes = g.granted+1, g.bytes+len(payload)
	return wire.OK
}
