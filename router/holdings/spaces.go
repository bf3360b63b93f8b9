package holdings

import (
	"slices"
	"sync"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
)

// maxSpaces bounds the remembered namespaces. A new one replaces the one heard longest ago.
const maxSpaces = 256

// spaces holds the namespaces and layers that daemons have reported. A promotion must name its
// namespace by name.
type spaces struct {
	mu   sync.Mutex
	list []space // the one heard last is at the end
}

// space names the blocks of one layer, or of all layers, in a model's namespace.
type space struct {
	text  string
	name  name
	layer uint32
	block.Namespace
	chunks bool // of LMCache, whose keys only a daemon that has them can say
}

// heard records a namespace of rank 0. The objects of vLLM's own tier have keys that do not follow
// from what is told of them, so nobody can ask for them.
func (s *spaces) heard(text string, layer uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.list) - 1; i >= 0; i-- {
		if at := s.list[i]; at.layer == layer && at.text == text {
			s.list = append(slices.Delete(s.list, i, i+1), at)
			return
		}
	}
	n, err := block.ParseNamespace(text)
	scheme, chunks := alias.SchemeOf(&n)
	if err != nil || n.Space != "" || chunks && !scheme.Derived() {
		return
	}
	if len(s.list) == maxSpaces {
		s.list = slices.Delete(s.list, 0, 1)
	}
	s.list = append(s.list, space{text, nameOf(text), layer, n, chunks})
}

// of returns the spaces of a model that an engine reads, the one heard last first; reads nil: it
// reads all. If no such space has the model's name, of returns all that it reads, because engines
// may use another name. Digests still tell the models apart.
func (s *spaces) of(model string, list []name) (found []space) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, any := range []bool{false, true} {
		for i := len(s.list) - 1; i >= 0 && len(found) < promoteSpaces; i-- {
			if at := &s.list[i]; (any || at.Model == model) && reads(list, at.name) {
				found = append(found, *at)
			}
		}
		if len(found) > 0 {
			break
		}
	}
	return found
}

// maxRanks bounds the ranks of a model that are searched for a block.
const maxRanks = 64

// ranks returns the namespaces of all ranks of the model.
func (s *space) ranks() (texts []string) {
	n := s.Namespace
	for n.PPRank = 0; n.PPRank < n.PP; n.PPRank++ {
		for n.TPRank = 0; n.TPRank < n.TP && len(texts) < maxRanks; n.TPRank++ {
			texts = append(texts, n.String())
		}
	}
	return texts
}
