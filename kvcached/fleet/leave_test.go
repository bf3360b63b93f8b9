package fleet

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// gate answers a Get when it is let to.
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

// TestTheSourceLeavesWhilePulled: a key that comes from a host which leaves the fleet meanwhile is
// delivered, unless somebody set it, who does not know that host any more, or deleted it.
func TestTheSourceLeavesWhilePulled(t *testing.T) {
	for _, then := range []string{"nothing", "set", "deleted"} {
		for _, keeper := range []string{"b", "c"} {
			t.Run(then+" kept by "+keeper, func(t *testing.T) {
				g := gate{entered: make(chan struct{}), let: make(chan struct{})}
				a := startWith(t, "a", Options{}, func(o *transport.ServerOptions) {
					g.Handler, o.Handler = o.Handler, &g
				})
				b, c := start(t, "b", Options{}), start(t, "c", Options{})
				meet(a, b, c)
				k := keptBy(newRoster("b", []Member{b.member, c.member}), keeper)
				a.put(keys, k, "old")
				got := make(chan string, 1)
				await(t, "the key is known", func() bool { _, err := b.Stat(t.Context(), k); return err == nil })
				go func() { got <- b.text(k) }()
				<-g.entered
				meet(b, c)
				await(t, "all is told anew", func() bool { return b.keeper.certain() && c.keeper.certain() })
				closed := make(chan struct{})
				go func() {
					defer close(closed)
					closing, end := context.WithTimeout(context.Background(), time.Minute)
					defer end()
					_ = a.server.Close(closing)
				}()
				want, after := "old", "old"
				switch then {
				case "set":
					c.put(keys, k, "new")
					want, after = "", "new"
				case "deleted":
					if _, err := c.Delete(t.Context(), k); err != nil {
						t.Fatal(err)
					}
					want, after = "", ""
				}
				close(g.let)
				if text := <-got; text != want && text != after {
					t.Errorf("%q was pulled", text)
				}
				for _, h := range []*host{b, c} {
					await(t, fmt.Sprintf("it is %q on %s", after, h.o.Self), func() bool { return h.text(k) == after })
				}
				<-closed
			})
		}
	}
}

// keptBy is a key whose location a member of the fleet keeps.
func keptBy(r *roster, id string) block.Addr {
	for i := 0; ; i++ {
		if k := key(fmt.Sprint(i)); r.keeper(&k).ID == id {
			return k
		}
	}
}
