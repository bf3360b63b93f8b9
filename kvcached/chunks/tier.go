package chunks

import (
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/vllmtier"
)

// ErrUnseen says that an engine with an access key of its own has not asked for an object of vLLM's
// tier since the daemon's start, so that nobody knows which objects are its.
var ErrUnseen = errors.New("chunks: no engine has used the S3 listener yet with this access key")

// engine is one that uses the S3 listener with an access key of its own.
type engine struct{ keys, access string }

// Asked says that the client with an access key has asked for a key in a namespace of keys, or
// stores it. Of clients that are engines the Table keeps MODEL_CONFIG, of maxOrigins at most. A
// further one takes the place of any other, which comes back with its next request.
func (t *Table) Asked(access, keys string, key []byte) {
	if !vllmtier.IsClient(access) {
		return
	}
	k, err := vllmtier.Parse(key)
	if err != nil {
		return
	}
	e := engine{keys, access}
	t.mu.Lock()
	defer t.mu.Unlock()
	remember(t.engines, maxOrigins, e, k.Base)
}

// resolve returns a source with the model in its keys, in place of the engine. The error is
// ErrUnseen.
func (t *Table) resolve(s *alias.Source) (*alias.Source, error) {
	if s.Engine == "" {
		return s, nil
	}
	own := *s
	if own.Model = t.baseOf(engine{s.Keys, s.Engine}); own.Model == "" {
		return nil, fmt.Errorf("%w: %s", ErrUnseen, s.Engine)
	}
	own.Engine = ""
	return &own, nil
}

// Namespace returns the namespace in which told chunks of the source with this number of tokens
// count; empty: none, because Tell refuses the source.
func (t *Table) Namespace(s *alias.Source, tokens int) string {
	s, err := t.resolve(s)
	if err != nil || check(s) != nil {
		return ""
	}
	return s.Namespace(tokens).String()
}

// baseOf returns MODEL_CONFIG of an engine's objects; empty: it is not known.
func (t *Table) baseOf(e engine) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.engines[e]
}
