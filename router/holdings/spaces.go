package holdings

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/lmcache"
)

// maxSpaces bounds the remembered namespaces. A new one replaces the oldest.
const maxSpaces = 256

// spaces holds the namespaces and layers that daemons have reported. A promotion must name its
// namespace by name.
type spaces struct {
	mu    sync.Mutex
	list  []space
	sizes atomic.Pointer[map[string]float64] // bytes of 16 tokens by model; nil: no size is known
}

// space names the blocks of one layer, or of all layers, in a model's namespace.
type space struct {
	text  string
	layer uint32
	size  uint64 // bytes of an object of the rank; 0: unknown
	block.Namespace
}

// heard records a namespace of rank 0, and the bytes of its objects; 0: unknown. The objects of
// LMCache's chunks have keys and no digests, so nobody can ask for them.
func (s *spaces) heard(text string, layer uint32, size uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.list {
		if at := &s.list[i]; at.layer == layer && at.text == text {
			if size > 0 && size != at.size {
				at.size = size
				s.weigh()
			}
			return
		}
	}
	n, err := block.ParseNamespace(text)
	if err != nil || n.Space != "" || strings.HasPrefix(n.Layout, lmcache.Layout) {
		return
	}
	if len(s.list) == maxSpaces {
		s.list = append(s.list[:0], s.list[1:]...)
	}
	s.list = append(s.list, space{text, layer, size, n})
	s.weigh()
}

// weigh publishes the sizes. The caller holds s.mu.
func (s *spaces) weigh() {
	sizes := map[string]float64{}
	for i := range s.list {
		if at := &s.list[i]; at.bytes() > 0 {
			sizes[at.Model] = max(sizes[at.Model], at.bytes())
		}
	}
	s.sizes.Store(&sizes)
}

// bytes returns the bytes of 16 tokens in all ranks; 0: unknown, as with an object for each layer.
func (s *space) bytes() float64 {
	blocks := s.Blocks()
	if blocks == 0 || s.layer != block.LayerAll {
		return 0
	}
	return float64(s.size) / float64(blocks) * float64(s.TP) * float64(s.PP)
}

// BlockBytes returns how many bytes the cache daemons keep for 16 tokens of a model, in all ranks;
// 0: unknown. If namespaces of the model differ, the largest one counts.
func (m *Map) BlockBytes(model string) float64 {
	if sizes := m.spaces.sizes.Load(); sizes != nil {
		return (*sizes)[model]
	}
	return 0
}

// of returns the spaces of a model, the latest first. If no space has the model's name, of returns
// all spaces, because engines may use another name. Digests still tell the models apart.
func (s *spaces) of(model string) (found []space) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, any := range []bool{false, true} {
		for i := len(s.list) - 1; i >= 0 && len(found) < promoteSpaces; i-- {
			if any || s.list[i].Model == model {
				found = append(found, s.list[i])
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
