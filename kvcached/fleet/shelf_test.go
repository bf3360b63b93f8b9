package fleet

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/cognitora/dataplane/kvcached/purge"
)

// lists stands for etcd: a list of purges that can be lost, and the hosts that etcd lists.
type lists struct {
	mu    sync.Mutex
	list  *purge.List // nil: etcd has no list
	hosts map[string]Member
}

// shelf is one host's Register.
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

// Append belongs to Register.
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

// Refresh belongs to Register.
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
