package fleet

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/cognitora/dataplane/kvcached/purge"
)

// lists is the list of purges in an etcd that can be emptied, and the hosts that it names.
type lists struct {
	mu    sync.Mutex
	list  *purge.List // nil: there is none
	hosts map[string]Member
}

// shelf is one host's way to lists.
type shelf struct {
	lists  *lists
	ledger *purge.Ledger
	host   *host

	mu  sync.Mutex
	cut atomic.Bool // this host does not reach etcd
}

func (s *shelf) write(mine *purge.List, change func(*purge.List) (*purge.List, error)) (list *purge.List,
	hosts []Member, err error) {
	if s.cut.Load() {
		return nil, nil, errors.New("etcd does not answer")
	}
	s.lists.mu.Lock()
	defer s.lists.mu.Unlock()
	if list, err = purge.Merge(mine, s.lists.list); err == nil {
		list, err = change(list)
	}
	if err != nil {
		return nil, nil, err
	}
	s.lists.list = list
	for _, m := range s.lists.hosts {
		hosts = append(hosts, m)
	}
	return list, hosts, nil
}

// Append is Register's.
func (s *shelf) Append(ctx context.Context, what purge.Selector) (*Appended, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := s.ledger.List()
	list, hosts, err := s.write(mine, func(l *purge.List) (*purge.List, error) { return l.With(what) })
	if err != nil {
		return nil, purge.ErrNoEtcd
	}
	if s.lists.hosts == nil {
		hosts = s.host.Others()
	}
	out := &Appended{List: list, Caches: hosts}
	out.Here.Blocks, out.Here.Err = s.ledger.Replace(ctx, mine, list)
	return out, nil
}

// Refresh is Register's.
func (s *shelf) Refresh(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := s.ledger.List()
	list, _, err := s.write(mine, func(l *purge.List) (*purge.List, error) { return l, nil })
	if err == nil {
		_, err = s.ledger.Replace(ctx, mine, list)
	}
	return err
}
