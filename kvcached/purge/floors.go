package purge

import (
	"cmp"
	"math"
	"slices"
	"sync"

	"github.com/cognitora/dataplane/kv/block"
)

// floors tells which records on SSD are older than a purge. It looks at each namespace once.
type floors struct {
	purges []marked // the highest mark first

	mu          sync.Mutex
	byNamespace map[string]uint64 // highest mark of the purges that remove all blocks of a namespace
}

type marked struct {
	*Purge
	mark uint64
}

func newFloors(list *List, marks markings) *floors {
	f := &floors{byNamespace: map[string]uint64{}}
	for i := range list.Purges {
		p := marked{&list.Purges[i], math.MaxUint64}
		if mark, there := marks[p.ID]; there {
			p.mark = mark
		}
		f.purges = append(f.purges, p)
	}
	slices.SortStableFunc(f.purges, func(a, b marked) int { return cmp.Compare(b.mark, a.mark) })
	return f
}

// dead tells whether a record is older than a purge of its block.
func (f *floors) dead(seq uint64, namespace string, key []byte) bool {
	if len(f.purges) == 0 || seq >= f.purges[0].mark {
		return false
	}
	if seq < f.of(namespace) {
		return true
	}
	if len(key) == 0 || !block.OfKeys(namespace) {
		return false
	}
	for _, p := range f.purges {
		if seq >= p.mark {
			return false
		}
		if p.Model != "" && p.Matches(namespace, key) {
			return true
		}
	}
	return false
}

// of is the highest mark of the purges that remove all blocks of a namespace.
func (f *floors) of(namespace string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	mark, known := f.byNamespace[namespace]
	if !known {
		for _, p := range f.purges {
			if p.Matches(namespace, nil) {
				mark = p.mark
				break
			}
		}
		f.byNamespace[namespace] = mark
	}
	return mark
}
