package fleet

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// gate delays the answer to a Get until it may go on.
type gate struct {
	transport.Handler
	entered, let chan struct{}
}

func (g gate) Get(ctx context.Context, a block.Addr) (transport.Block, error) {
	b, err := g.Handler.Get(ctx, a)
	if err == nil {
		g.entered <- struct{}{}
		<-g.let
	}
	return b, err
}

// TestTheSourceLeavesWhilePulled pulls a key from a host that leaves the fleet meanwhile. The key
// is delivered and its location is announced.
func TestTheSourceLeavesWhilePulled(t *testing.T) {
	for _, keeper := range []string{"b", "c"} {
		t.Run("kept by "+keeper, func(t *testing.T) {
			g := gate{entered: make(chan struct{}), let: make(chan struct{})}
			a := startWith(t, "a", Options{}, func(o *transport.ServerOptions) {
				g.Handler, o.Handler = o.Handler, &g
			})
			b, c := start(t, "b", Options{}), start(t, "c", Options{})
			meet(a, b, c)
			k := keptBy(newRoster("b", []Member{b.member, c.member}), keeper)
			a.put(keys, k, "old")
			got := make(chan string, 1)
			eventually(t, "the key is known", func() bool { _, err := b.Stat(t.Context(), k); return err == nil })
			go func() { got <- b.text(k) }()
			<-g.entered
			meet(b, c)
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				closing, end := context.WithTimeout(context.Background(), time.Minute)
				defer end()
				_ = a.server.Close(closing)
			}()
			close(g.let)
			if text := <-got; text != "old" {
				t.Errorf("%q was pulled", text)
			}
			eventually(t, "c has it from b", func() bool { return c.text(k) == "old" })
			<-closed
		})
	}
}

// keptBy returns a key that has the given member as its keeper.
func keptBy(r *roster, id string) block.Addr {
	for i := 0; ; i++ {
		if k := key(fmt.Sprint(i)); r.keeper(&k).ID == id {
			return k
		}
	}
}
