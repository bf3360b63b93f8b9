package holdings

import (
	"sync"

	"github.com/cognitora/dataplane/kv/block"
)

// maxSpaces bounds the namespaces that are remembered; the one heard of first is forgotten for
// another.
const maxSpaces = 256

// spaces are the namespaces, and layers, that daemons have said they have blocks of: what is to be
// promoted has to be asked for by name.
type spaces struct {
	mu   sync.Mutex
	list []space
}

// space is the blocks of a model's namespace that are of one layer, or of all.
type space struct {
	text  string
	layer uint32
	block.Namespace
}

// heard notes a namespace of rank 0.
func (s *spaces) heard(text string, layer uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.list {
		if s.list[i].layer == layer && s.list[i].text == text {
			return
		}
	}
	n, err := block.ParseNamespace(text)
	if err != nil || n.Space != "" {
		return
	}
	if len(s.list) == maxSpaces {
		s.list = append(s.list[:0], s.list[1:]...)
	}
	s.list = append(s.list, space{text, layer, n})
}

// of are those of a model, the latest first. Where none has its name all are, for engines may know
// it by another: digests tell models apart.
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

// maxRanks is how many ranks of a model a block is looked for of.
const maxRanks = 64

// ranks are the namespaces of all ranks of the model.
func (s *space) ranks() (texts []string) {
	n := s.Namespace
	for n.PPRank = 0; n.PPRank < n.PP; n.PPRank++ {
		for n.TPRank = 0; n.TPRank < n.TP && len(texts) < maxRanks; n.TPRank++ {
			texts = append(texts, n.String())
		}
	}
	return texts
}
