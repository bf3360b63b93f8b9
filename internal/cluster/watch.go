package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cognitora/dataplane/internal/await"
)

// Entry is one key and its value at a revision.
type Entry struct {
	Key   string
	Value []byte
	Rev   int64 // revision of the last change
}

// Listing is the whole content of a prefix at one revision.
type Listing struct {
	Entries []Entry
	Rev     int64
	// AfterOutage means that the connection was lost before this listing. Keys may be missing
	// because their writers have not come back yet.
	AfterOutage bool
	// DataLost means that etcd's revision went backwards. etcd came back empty or from a backup, so
	// nobody has deleted the missing keys.
	DataLost bool
}

// Handler receives the events of Watch. The goroutine of Watch calls its functions one at a time.
type Handler struct {
	List   func(Listing)    // called first, and after every interruption
	Put    func(Entry)      //
	Delete func(key string) // the key was deleted, or its lease has ended
	// called when etcd does not answer; the last state stays valid, and List follows when etcd is
	// back; may be nil
	Lost func(err error)
	// PingEvery is how often Watch checks that etcd is still the same instance. 0: every second.
	PingEvery time.Duration
}

// Bounds of one watch.
const (
	// default of Handler.PingEvery
	pingEvery  = time.Second
	retryFirst = 100 * time.Millisecond // wait before the first new listing; doubles up to retryLast
	retryLast  = time.Second
)

// Watch follows all keys that start with prefix until ctx ends, and then returns nil. Watch lists,
// and follows from the listing's revision on. Watch lists again if the connection was lost, if the
// revision was compacted, or if etcd came back with other data. A plain watch of etcd would hang
// for ever after etcd came back with other data.
func (c *Client) Watch(ctx context.Context, prefix string, h Handler) error {
	w := &watch{client: c, prefix: prefix, handler: h, wait: retryFirst}
	for ctx.Err() == nil {
		err := w.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, errRelist) {
			w.lose(ctx, err)
		}
		await.About(ctx, w.wait)
		w.wait = min(2*w.wait, retryLast)
	}
	return nil
}

// errRelist ends a session in which etcd answers, but the listing may be outdated: for example
// after a compaction or a change of leader. The next session lists again.
var errRelist = errors.New("listing is out of date")

type watch struct {
	client  *Client
	prefix  string
	handler Handler
	rev     int64  // newest revision seen
	term    uint64 // raft term of the listing; a new term means that etcd has restarted or failed over
	lost    bool
	wait    time.Duration
}

func (w *watch) lose(ctx context.Context, err error) {
	if !w.lost && w.handler.Lost != nil {
		w.handler.Lost(w.client.Why(ctx, err))
	}
	w.lost = true
}

// session lists once and follows until an error.
func (w *watch) session(ctx context.Context) error {
	if err := w.list(ctx); err != nil {
		return err
	}
	w.wait = retryFirst
	ctx, cancel := context.WithCancel(ctx)
	var changes clientv3.WatchChan // nil until the watch is open
	opened, from := make(chan clientv3.WatchChan, 1), watchFrom(w.rev)
	go func() { // Watch does not return while etcd is away, and the pings must notice that
		opened <- w.client.etcd.Watch(clientv3.WithRequireLeader(ctx), w.prefix, from...)
	}()
	defer func() {
		if cancel(); changes == nil {
			<-opened
		}
	}()
	ping := time.NewTicker(cmp.Or(w.handler.PingEvery, pingEvery))
	defer ping.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case changes = <-opened:
		case resp, open := <-changes:
			if err := watchError(resp, open); err != nil {
				return err
			}
			w.apply(resp)
		case <-ping.C:
			if err := w.ping(ctx); err != nil {
				return err
			}
		}
	}
}

// watchFrom returns the options to watch all changes after rev.
func watchFrom(rev int64) []clientv3.OpOption {
	return []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithRev(rev + 1)}
}

func watchError(resp clientv3.WatchResponse, open bool) error {
	switch {
	case !open, resp.CompactRevision != 0:
		return errRelist
	case resp.Err() != nil:
		return fmt.Errorf("etcd watch: %w", resp.Err())
	}
	return nil
}

func (w *watch) list(ctx context.Context) error {
	resp, err := w.client.get(ctx, w.prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	l := Listing{Rev: resp.Header.Revision, AfterOutage: w.lost, DataLost: resp.Header.Revision < w.rev}
	for _, kv := range resp.Kvs {
		l.Entries = append(l.Entries, Entry{Key: string(kv.Key), Value: kv.Value, Rev: kv.ModRevision})
	}
	w.rev, w.term, w.lost = l.Rev, resp.Header.RaftTerm, false
	w.handler.List(l)
	return nil
}

func (w *watch) apply(resp clientv3.WatchResponse) {
	w.rev = max(w.rev, resp.Header.Revision)
	for _, ev := range resp.Events {
		if ev.Type == clientv3.EventTypeDelete {
			w.handler.Delete(string(ev.Kv.Key))
		} else {
			w.handler.Put(Entry{Key: string(ev.Kv.Key), Value: ev.Kv.Value, Rev: ev.Kv.ModRevision})
		}
	}
}

// ping makes a request that returns only a header.
func (w *watch) ping(ctx context.Context) error {
	resp, err := w.client.get(ctx, w.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	if resp.Header.Revision < w.rev || resp.Header.RaftTerm != w.term {
		return errRelist
	}
	w.rev = resp.Header.Revision
	return nil
}

// WatchPolicy calls changed with the stored policy document first, and after every change; nil
// means that there is none. If the policy is missing only because etcd has lost its data, changed
// is not called, and the last policy stays in force.
func (c *Client) WatchPolicy(ctx context.Context, changed func(doc []byte)) error {
	return c.Watch(ctx, PolicyKey, Handler{
		List: func(l Listing) {
			i := slices.IndexFunc(l.Entries, func(e Entry) bool { return e.Key == PolicyKey })
			if i >= 0 {
				changed(present(l.Entries[i].Value))
			} else if !l.DataLost {
				changed(nil)
			}
		},
		Put: func(e Entry) {
			if e.Key == PolicyKey {
				changed(present(e.Value))
			}
		},
		Delete: func(key string) {
			if key == PolicyKey {
				changed(nil)
			}
		},
	})
}

// present distinguishes an empty value from no value.
func present(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}
