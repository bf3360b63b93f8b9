package transport

import (
	"context"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// MaxEarly is how many bytes of a block are sent to who asks before the handshake is done. More is
// refused with wire.ReplayRefused: whoever replays the question would have the server read and send
// them as often as they like.
const MaxEarly = 64 << 10

// short refuses an early Get of more than MaxEarly without reading the block.
func (op *operation) short(ctx context.Context, a block.Addr) error {
	if !op.early {
		return nil
	}
	var info [1]wire.Info
	if err := op.link.s.o.Handler.Stat(ctx, []block.Addr{a}, info[:]); err != nil {
		return err
	}
	n := info[0].Length - min(op.f.Offset, info[0].Length)
	if op.f.Len != 0 {
		n = min(n, op.f.Len)
	}
	if n > MaxEarly {
		return wire.ReplayRefused
	}
	return nil
}
