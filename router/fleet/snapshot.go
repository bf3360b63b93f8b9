package fleet

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/policy"
)

// Snapshot is the fleet at one moment: its nodes and their models. Snapshot is immutable. Read the
// changing values (requests in flight, health, load) through the snapshot's nodes.
type Snapshot struct {
	Rev        uint64    // counts publications
	Nodes      []*Node   // sorted by id
	Stale      bool      // etcd does not answer; this is the last state from etcd
	StaleSince time.Time // when the outage began
	Problems   []Problem // why a configured thing is not a usable node
	Partial    bool      // a backend, or etcd, has never named its models; further models may come
	// Settings are the models' settings in force, by the models' names. A change makes a new map.
	Settings map[string]*cluster.Model

	replaced chan struct{} // closed once there is a newer snapshot

	unheard bool      // etcd is used and has never answered
	awaited time.Time // until then a new static backend may name its models

	byID   map[string]*Node
	names  map[string]*ModelView // by canonical name and by alias
	models []*ModelView          // sorted by name
}

// Problem is a configured or announced thing that is not served as it should be.
type Problem struct {
	Subject string `json:"subject"` // a node id, "name " and a DNS name, an etcd key, "model " and a model, or "policy, " and its source
	Reason  string `json:"reason"`
}

// ModelView is one model and the nodes that serve it.
type ModelView struct {
	Name    string // canonical
	Aliases []string
	Nodes   []*Node // nodes that answer requests (roles both and decode), sorted by id
	Prefill []*Node // nodes of role prefill only

	Adapter  bool           // the model is a LoRA adapter
	Base     *ModelView     // the adapter's base; nil: the model is no adapter, or nothing serves its base
	Settings *cluster.Model // nil: none
	Policy   *policy.Policy // the model's own policy, or its base's; nil: the fleet's holds
	Amiss    []string       // mistakes in the model's cascade, which are among the snapshot's problems

	roles     map[*Node]cluster.Role // of the nodes whose role the settings say
	announced bool                   // a node of etcd lists the model
}

// Model finds a model by its name or an alias. Model returns nil if no node serves the model. Model
// allocates nothing.
func (s *Snapshot) Model(name []byte) *ModelView { return s.names[string(name)] }

// MayCome says whether an unknown model may yet be announced. An unknown model may be announced
// shortly after a backend was configured. An unknown model may also be announced while etcd, or
// every backend, has never named its models.
func (s *Snapshot) MayCome(now time.Time) bool {
	return s.Partial && (s.unheard || len(s.models) == 0 || now.Before(s.awaited))
}

// Unheard says that etcd has never answered and that no model is known.
func (s *Snapshot) Unheard() bool { return s.unheard && len(s.models) == 0 }

// Sole returns the model of a request that names none. The result is the only model with nodes that
// is no LoRA adapter. If there is none, the result is the only known model. Sole returns nil if
// several models are possible.
func (s *Snapshot) Sole() *ModelView {
	var sole *ModelView
	served := 0
	for _, m := range s.models {
		if len(m.Nodes) > 0 && !m.Adapter {
			sole, served = m, served+1
		}
	}
	switch {
	case served == 1:
		return sole
	case served == 0 && len(s.models) == 1:
		return s.models[0]
	}
	return nil
}

// Models returns all models sorted by name.
func (s *Snapshot) Models() []*ModelView { return s.models }

// Node finds a node by its id. Node returns nil for an unknown id.
func (s *Snapshot) Node(id string) *Node { return s.byID[id] }

// Worker finds a node by its id, or else by its number. Worker returns nil for an unknown worker.
func (s *Snapshot) Worker(id string) *Node {
	if n := s.byID[id]; n != nil {
		return n
	}
	number := uint64(0)
	for _, c := range []byte(id) {
		if c < '0' || c > '9' || number > math.MaxUint64/10-1 {
			return nil
		}
		number = number*10 + uint64(c-'0')
	}
	for _, n := range s.Nodes {
		if n.Number() == number && id != "" {
			return n
		}
	}
	return nil
}

// Ready says whether a request would be answered now: some model has a node that may be picked, or
// a node that answers with errors. Otherwise detail gives the operator the reason.
func (s *Snapshot) Ready(now time.Time) (ready bool, detail string) {
	failing := false
	for _, m := range s.models {
		for _, n := range m.Nodes {
			if ok, _ := n.Eligible(now); ok {
				return true, s.staleDetail()
			}
			failing = failing || n.LastResort()
		}
	}
	if failing {
		return true, "no node is well; those that answer, if only with server errors, are asked all the same"
	}
	var b strings.Builder
	b.WriteString("no node can take a request")
	for i, n := range s.Nodes {
		if i == 8 {
			b.WriteString("; …")
			break
		}
		b.WriteString("; " + n.ID + ": " + s.whyNot(n, now))
	}
	for i, p := range s.Problems {
		if i == 8 {
			break
		}
		b.WriteString("; " + p.Subject + ": " + p.Reason)
	}
	if detail := s.staleDetail(); detail != "" {
		b.WriteString("; " + detail)
	}
	return false, b.String()
}

func (s *Snapshot) staleDetail() string {
	if !s.Stale {
		return ""
	}
	if s.unheard {
		return "etcd has not answered since the start at " + s.StaleSince.UTC().Format(time.RFC3339) + "; none of " +
			"its nodes is known"
	}
	return "etcd does not answer since " + s.StaleSince.UTC().Format(time.RFC3339) + "; serving with the nodes " +
		"known then"
}

// These are the reasons why a prefill node answers no requests.
const (
	prefillOnly   = "its role is prefill: it computes prompts for nodes of roles both and decode, and answers nothing"
	prefillUnused = "its role is prefill, and it has no connector by which it could hand prompts over"
)

// whyPrefill says why n, whose role is prefill, answers no requests.
func (n *Node) whyPrefill() string {
	if n.Info().Hands(cluster.RolePrefill) == "" {
		return prefillUnused
	}
	return prefillOnly
}

// whyNot explains a node that answers no requests now.
func (s *Snapshot) whyNot(n *Node, now time.Time) string {
	why := n.whyNot(now)
	if why != itServes || s.answers(n) {
		return why
	}
	for _, m := range s.models {
		if slices.Contains(m.Prefill, n) {
			return m.WhyPrefill(n)
		}
	}
	return "the pools of its models leave it out"
}

const itServes = "serves"

// whyNot explains a node that serves nothing.
func (n *Node) whyNot(now time.Time) string {
	if ok, reason := n.Eligible(now); !ok {
		if last := n.Health.LastError(); last != "" {
			return reason + " (" + last + ")"
		}
		return reason
	}
	if n.Info().Role == cluster.RolePrefill {
		return n.whyPrefill()
	}
	if len(n.Info().Models) == 0 {
		return "it serves no model"
	}
	return itServes
}

// build makes the snapshot of the given nodes and settings. A model with settings in etcd, and one
// that the settings say is an adapter or a cascade, is known also without a node.
func build(nodes []*Node, in *settings) *Snapshot {
	s := &Snapshot{Nodes: nodes, byID: make(map[string]*Node, len(nodes)), names: map[string]*ModelView{},
		replaced: make(chan struct{})}
	slices.SortFunc(nodes, byID)
	for name := range in.stored {
		s.names[name] = &ModelView{Name: name}
	}
	all := map[*ModelView][]*Node{}
	for _, n := range nodes {
		s.byID[n.ID] = n
		for _, name := range n.Info().Models {
			m := s.named(name)
			all[m] = append(all[m], n)
			m.announced = m.announced || n.Source == Etcd
		}
	}
	for name, m := range in.ours {
		if m.Base != "" || len(m.Chain) > 0 {
			s.named(name)
		}
	}
	s.models = slices.SortedFunc(maps.Values(s.names), func(a, b *ModelView) int {
		return strings.Compare(a.Name, b.Name)
	})
	s.configure(in, all)
	return s
}

// named returns the model with this name, and makes it if there is none.
func (s *Snapshot) named(name string) *ModelView {
	m := s.names[name]
	if m == nil {
		m = &ModelView{Name: name}
		s.names[name] = m
	}
	return m
}

// remember adds a model that no node serves now.
func (s *Snapshot) remember(name string) {
	if s.names[name] != nil {
		return
	}
	m := &ModelView{Name: name}
	at, _ := slices.BinarySearchFunc(s.models, name, func(m *ModelView,
		name string) int {
		return strings.Compare(m.Name, name)
	})
	s.names[name], s.models = m, slices.Insert(s.models, at, m)
}

// addAliases makes models findable by their aliases. A model's own name wins over an alias. Of two
// models with the same alias, one with nodes gets it before one without, then the first by name.
func (s *Snapshot) addAliases(configured map[string]*cluster.Model) {
	inTurn := slices.Clone(s.models)
	slices.SortStableFunc(inTurn, func(a, b *ModelView) int {
		return cmp.Compare(min(1, len(b.Nodes)), min(1, len(a.Nodes)))
	})
	for _, m := range inTurn {
		c := configured[m.Name]
		if c == nil {
			continue
		}
		for _, alias := range c.Aliases {
			if other := s.names[alias]; other == nil {
				s.names[alias] = m
				m.Aliases = append(m.Aliases, alias)
			} else if other != m {
				s.modelProblem(m, "alias "+alias+" is taken by model "+other.Name)
			}
		}
	}
}
