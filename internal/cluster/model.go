package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Model is the value of a model's key: the settings of one model, for all routers. A model without
// a setting has the setting's default. Other members of the value are ignored.
type Model struct {
	Aliases []string `json:"aliases,omitempty"` // further names of the model
	// Base is the name of the model whose LoRA adapter this model is. Every node that serves the
	// base then serves the adapter, and loads it when the first request comes. Empty: the nodes
	// that list the model serve it.
	Base string `json:"base,omitempty"`
	// Tokenizer is a directory on the routers' hosts, none or learn.
	Tokenizer    string `json:"tokenizer,omitempty"`
	ChatTemplate string `json:"chat_template,omitempty"` // file on the routers' hosts
	// Pools are the ids of the model's nodes by role. A role with a list has exactly these nodes,
	// whatever the nodes' own role is. A role without a list has the nodes of that role that are in
	// no list.
	Pools  map[Role][]string `json:"pools,omitempty"`
	Policy json.RawMessage   `json:"policy,omitempty"` // policy document; empty: the fleet's policy
	// AdapterLoadS is the time in seconds that an engine takes to load the adapter, or any adapter
	// of this model; 0: unknown.
	AdapterLoadS float64 `json:"adapter_load_s,omitempty"`
	Cascade
}

// Cascade says that several models answer the requests for one name in turn.
type Cascade struct {
	// Chain are the models, the cheapest first. The model itself may be one of them. Empty: none.
	Chain []string `json:"cascade,omitempty"`
	// Thresholds are the confidences below which an answer is dropped, and the next model is asked:
	// one for all models, or one for each but the last. Empty: the router's own.
	Thresholds []float64 `json:"cascade_thresholds,omitempty"`
	// Direct is the model of the chain that answers what cannot be judged; empty: the last one.
	Direct string `json:"cascade_direct,omitempty"`
}

// NoTokenizer is the Tokenizer of a model whose prompts are given as token ids.
const NoTokenizer = "none"

// LearnedTokens is the Tokenizer of a model whose tokens the routers learn from its engines.
const LearnedTokens = "learn"

// Files says whether the model's Tokenizer is a directory.
func (m *Model) Files() bool {
	return m.Tokenizer != "" && m.Tokenizer != NoTokenizer && m.Tokenizer != LearnedTokens
}

// Bounds of one model's settings.
const (
	maxAliases     = 256
	maxPool        = 4096
	maxPathBytes   = 4096
	MaxAdapterLoad = time.Hour
	maxChain       = 8
	// LeastConfidence is the lowest threshold of a cascade. The highest one is 0.
	LeastConfidence = -100
)

// AdapterLoad returns the time that an engine takes to load an adapter; 0: unknown.
func (m *Model) AdapterLoad() time.Duration {
	return time.Duration(m.AdapterLoadS * float64(time.Second))
}

// ParseModel parses and checks the value of a model's key.
func ParseModel(name string, value []byte) (*Model, error) {
	if name == "" {
		return nil, errors.New("model: the name is empty")
	}
	if len(value) > maxValueBytes {
		return nil, fmt.Errorf("model %s: its value has %d bytes; at most %d are allowed", name, len(value),
			maxValueBytes)
	}
	m := &Model{}
	if err := json.Unmarshal(value, m); err != nil {
		return nil, fmt.Errorf("model %s: %w", name, err)
	}
	if err := m.Check(name); err != nil {
		return nil, fmt.Errorf("model %s: %w", name, err)
	}
	return m, nil
}

// Check validates the settings of the model with this name, and returns all problems together.
func (m *Model) Check(name string) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := checkModels(m.Aliases); err != nil || len(m.Aliases) > maxAliases {
		bad("aliases are empty, above %d bytes or more than %d", maxModelBytes, maxAliases)
	}
	switch {
	case m.Base == "":
	case !modelFits(m.Base):
		bad("base has %d bytes; at most %d are allowed", len(m.Base), maxModelBytes)
	case m.Base == name:
		bad("base is the model itself; name the model whose adapter it is, or leave it out")
	}
	if len(m.Tokenizer) > maxPathBytes || len(m.ChatTemplate) > maxPathBytes {
		bad("tokenizer or chat_template has more than %d bytes", maxPathBytes)
	}
	if m.ChatTemplate != "" && !m.Files() {
		bad("chat_template needs a tokenizer: set the directory with the model's tokenizer.json, or leave it out")
	}
	if most := MaxAdapterLoad.Seconds(); !(m.AdapterLoadS >= 0 && m.AdapterLoadS <= most) {
		bad("adapter_load_s %g is not in 0..%g; 0 is unknown", m.AdapterLoadS, most)
	}
	if first := firstByte(m.Policy); first != 0 && first != '{' {
		bad("policy is no JSON object; give a policy document, or leave it out")
	}
	return errors.Join(append(errs, m.checkPools(), m.Cascade.check())...)
}

// check validates a cascade.
func (c *Cascade) check() error {
	if len(c.Chain) == 0 {
		if len(c.Thresholds) > 0 || c.Direct != "" {
			return errors.New("cascade_thresholds and cascade_direct need a cascade; name its models, or leave them out")
		}
		return nil
	}
	if n := len(c.Chain); n < 2 || n > maxChain {
		return fmt.Errorf("cascade names %d models; name 2 to %d, the cheapest first", n, maxChain)
	}
	if err := checkModels(c.Chain); err != nil {
		return fmt.Errorf("cascade names a model that is empty or above %d bytes", maxModelBytes)
	}
	for i, name := range c.Chain {
		if slices.Contains(c.Chain[:i], name) {
			return fmt.Errorf("cascade names %s twice; leave one out", name)
		}
	}
	if n := len(c.Thresholds); n > 1 && n != len(c.Chain)-1 {
		return fmt.Errorf("cascade_thresholds has %d values; give one, or %d: one for each model but the last", n,
			len(c.Chain)-1)
	}
	for _, v := range c.Thresholds {
		if !(v >= LeastConfidence && v <= 0) {
			return fmt.Errorf("cascade_thresholds has %g, which is not in %d..0; thresholds are log-probabilities", v,
				LeastConfidence)
		}
	}
	if c.Direct != "" && !slices.Contains(c.Chain, c.Direct) {
		return fmt.Errorf("cascade_direct %s is not in the cascade; name one of its models, or leave it out", c.Direct)
	}
	return nil
}

// firstByte returns the first byte of a JSON value; 0: there is no value, or null.
func firstByte(doc json.RawMessage) byte {
	text := strings.TrimLeft(string(doc[:min(len(doc), 64)]), " \t\r\n")
	if text == "" || strings.HasPrefix(text, "null") {
		return 0
	}
	return text[0]
}

func (m *Model) checkPools() error {
	in := map[string]Role{}
	for _, role := range []Role{RolePrefill, RoleDecode, RoleBoth} {
		ids := m.Pools[role]
		if len(ids) > maxPool {
			return fmt.Errorf("pool %s has %d nodes; at most %d are allowed", role, len(ids), maxPool)
		}
		for _, id := range ids {
			if err := CheckNodeID(id); err != nil {
				return fmt.Errorf("pool %s: %w", role, err)
			}
			other, twice := in[id]
			if twice && other == role {
				return fmt.Errorf("node %s is twice in the pool %s; leave one out", id, role)
			}
			if twice {
				return fmt.Errorf("node %s is in the pools %s and %s; leave it out of one", id, other, role)
			}
			in[id] = role
		}
	}
	for role := range m.Pools {
		if _, err := ParseRole(string(role)); err != nil || role == "" {
			return fmt.Errorf("pool %q is none of prefill, decode, both", role)
		}
	}
	return nil
}

// Over returns the settings of m, and for each setting that m leaves out the setting of under. m
// may be nil, and so may under.
func (m *Model) Over(under *Model) *Model {
	switch {
	case m == nil:
		return under
	case under == nil:
		return m
	}
	all := *m
	if len(all.Aliases) == 0 {
		all.Aliases = under.Aliases
	}
	if all.Tokenizer == "" { // a template belongs to its tokenizer
		all.Tokenizer, all.ChatTemplate = under.Tokenizer, under.ChatTemplate
	}
	if len(all.Pools) == 0 {
		all.Pools = under.Pools
	}
	if len(all.Policy) == 0 {
		all.Policy = under.Policy
	}
	if len(all.Chain) == 0 { // thresholds belong to their chain
		all.Cascade = under.Cascade
	}
	all.Base, all.AdapterLoadS = cmp.Or(all.Base, under.Base), cmp.Or(all.AdapterLoadS, under.AdapterLoadS)
	return &all
}

// StoredModel is one model's settings in etcd. Model is nil if the value cannot be used, and Err is
// the reason.
type StoredModel struct {
	Name  string
	Model *Model
	Err   error
}

// Models lists the stored settings in order of the models' names.
func (c *Client) Models(ctx context.Context) ([]StoredModel, error) {
	resp, err := c.get(ctx, ModelsPrefix, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByKey,
		clientv3.SortAscend))
	if err != nil {
		return nil, err
	}
	all := make([]StoredModel, 0, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		name := strings.TrimPrefix(string(kv.Key), ModelsPrefix)
		m, err := ParseModel(name, kv.Value)
		all = append(all, StoredModel{Name: name, Model: m, Err: err})
	}
	return all, nil
}

// PutModel stores a model's settings in place of the stored ones.
func (c *Client) PutModel(ctx context.Context, name string, m Model) error {
	value, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("model %s: %w", name, err)
	}
	if _, err := ParseModel(name, value); err != nil {
		return err
	}
	return c.put(ctx, ModelKey(name), value)
}

// RemoveModel removes a model's settings, and returns whether there were any.
func (c *Client) RemoveModel(ctx context.Context, name string) (existed bool, err error) {
	return c.remove(ctx, ModelKey(name))
}

// editTries bounds the attempts of EditModel while others change the same value.
const editTries = 16

// EditModel changes the stored settings of a model by edit, and returns the new settings. edit gets
// empty settings if none are stored, and may be called several times. EditModel keeps members of
// the value that Model does not have.
func (c *Client) EditModel(ctx context.Context, name string, edit func(*Model) error) (*Model, error) {
	key := ModelKey(name)
	for range editTries {
		resp, err := c.get(ctx, key)
		if err != nil {
			return nil, err
		}
		var was []byte
		rev := int64(0)
		if len(resp.Kvs) > 0 {
			was, rev = resp.Kvs[0].Value, resp.Kvs[0].ModRevision
		}
		value, m, err := edited(name, was, edit)
		if err != nil {
			return nil, err
		}
		done, err := c.replace(ctx, key, rev, value)
		if err != nil || done {
			return m, err
		}
	}
	return nil, fmt.Errorf("model %s: others change it all the time; try again", name)
}

// replace stores a value unless the key has changed since the revision. done is false if it has.
func (c *Client) replace(ctx context.Context, key string, rev int64, value []byte) (done bool, err error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	resp, err := c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", rev)).
		Then(clientv3.OpPut(key, string(value))).Commit()
	if err != nil {
		return false, fmt.Errorf("etcd put %s: %w", key, err)
	}
	return resp.Succeeded, nil
}

// edited returns the value after edit, with the members of the value before that Model does not
// have.
func edited(name string, was []byte, edit func(*Model) error) (value []byte, m *Model, err error) {
	m, members := &Model{}, map[string]json.RawMessage{}
	if was != nil {
		if err := errors.Join(json.Unmarshal(was, &members), json.Unmarshal(was, m)); err != nil {
			return nil, nil, fmt.Errorf("model %s: the stored value is no JSON object of a model: %w; remove it "+
				"(cgn-ctl model rm) and set it anew", name, err)
		}
	}
	if err := edit(m); err != nil {
		return nil, nil, err
	}
	known := map[string]json.RawMessage{}
	value, err = json.Marshal(m)
	if err == nil {
		err = json.Unmarshal(value, &known)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("model %s: %w", name, err)
	}
	for _, key := range ModelSettings() {
		delete(members, key)
	}
	for key, v := range known {
		members[key] = v
	}
	value, _ = json.Marshal(members) // each member is valid JSON
	m, err = ParseModel(name, value)
	return value, m, err
}

// ModelSettings returns the names of a model's settings, as the stored value has them.
func ModelSettings() (names []string) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Model]()) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
