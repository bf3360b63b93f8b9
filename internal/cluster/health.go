package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/load"
)

// Role is the part of a request that a node computes.
type Role string

// A node prefills, decodes, or does both.
const (
	RolePrefill Role = "prefill"
	RoleDecode  Role = "decode"
	RoleBoth    Role = "both"
)

// ParseRole parses a role; empty means both.
func ParseRole(s string) (Role, error) {
	switch r := Role(s); r {
	case "":
		return RoleBoth, nil
	case RolePrefill, RoleDecode, RoleBoth:
		return r, nil
	}
	return "", fmt.Errorf("role %q is none of prefill, decode, both", s)
}

// NodeHealth is the value that an agent writes about its node at every heartbeat. Unknown figures
// are left out. Unknown figures are never zero.
type NodeHealth struct {
	NodeID string `json:"node_id"`
	// Address is the URL of the agent's front: http://host:port, https://host:port or unix:///path.
	Address string `json:"address"`
	// PushAddress is where the agent pushes load as it changes: host:port or unix:///path. The push
	// is gRPC, with TLS if Address uses TLS.
	PushAddress string `json:"push_address,omitempty"`
	// KVAddress is the address of the host's cgn-kvcached, from CacheHealth: QUIC, or else TLS, or
	// else gRPC.
	KVAddress string `json:"kv_address,omitempty"`
	// KVEvents is where the agent itself serves Kv.Watch: host:port with mutual TLS, or
	// unix:///path.
	KVEvents string   `json:"kv_events,omitempty"`
	Instance string   `json:"instance,omitempty"` // random token of the agent that owns the key
	Role     Role     `json:"role,omitempty"`
	Engine   string   `json:"engine,omitempty"` // vllm, sglang, llama_cpp or openai_compat
	Models   []string `json:"models"`
	// Connector says how the engine hands KV blocks to another engine, or takes them; empty: not at
	// all, or by the DefaultConnector of the engine if Role is prefill or decode.
	Connector string `json:"connector,omitempty"`
	// Bootstrap is the address of the engine's bootstrap server: host:port, or :port on the host of
	// Address.
	Bootstrap string `json:"bootstrap,omitempty"`
	// EngineVersion is the engine's own version; empty: unknown.
	EngineVersion string `json:"engine_version,omitempty"`
	// Adapters are the LoRA adapters among Models.
	Adapters     []Adapter `json:"adapters,omitempty"`
	AdapterSlots int       `json:"adapter_slots,omitempty"` // adapters that the engine can use at once; 0: unknown
	Labels       []string  `json:"labels,omitempty"`        // set by the operator, such as gpu=h100; requests name them
	Experts      Experts   `json:"experts,omitempty"`       // set by the operator; empty: none are stated
	Hardware

	MaxConcurrent int `json:"max_concurrent,omitempty"` // concurrent requests, set by the operator; 0: not set
	EngineSlots   int `json:"engine_slots,omitempty"`   // concurrent requests, reported by the engine; 0: unknown
	BlockTokens   int `json:"block_tokens,omitempty"`   // tokens per KV block of the engine; 0: unknown
	// MaxBatchedTokens is the number of tokens that the engine computes in one step; 0: unknown.
	MaxBatchedTokens int `json:"max_batched_tokens,omitempty"`

	load.Load
	// PowerSource is the source of the power: redfish, dcmi, nvml, rapl or nvml+rapl; empty:
	// unknown.
	PowerSource string `json:"power_source,omitempty"`

	KVEpoch uint64 `json:"kv_epoch,omitempty"` // changes when the engine's cache starts empty
	Ready   bool   `json:"ready"`
	Version string `json:"version,omitempty"`
	// HeartbeatS is the time between two heartbeats in seconds; 0: not given. See Heartbeat.
	HeartbeatS float64 `json:"heartbeat_s,omitempty"`
	Stamp      int64   `json:"stamp"` // the agent's time in Unix milliseconds; changes with every heartbeat

	// LeftOut is set by ParseNodeHealth. LeftOut gives the reason if an optional address or the
	// connector in the value is empty here, or its labels or experts are left out.
	LeftOut error `json:"-"`
}

// Hardware describes the hardware of the engine.
type Hardware struct {
	Device string `json:"device,omitempty"` // gpu or cpu
	// GPUModel is the product name of the engine's GPUs. Names that differ are sorted and joined
	// with " + ". Empty: unknown, because the agent does not read NVML or is an older one.
	GPUModel string `json:"gpu_model,omitempty"`
	GPUIndex int    `json:"gpu_index"`
	TP       int    `json:"tp,omitempty"` // tensor-parallel width; 0: unknown
	// DataParallel is the number of the engine's data-parallel ranks; 0: one, or unknown.
	DataParallel int    `json:"data_parallel_size,omitempty"`
	DType        string `json:"dtype,omitempty"`
	VRAMBytes    int64  `json:"vram_bytes,omitempty"` // 0: unknown
}

// Bounds of the time between two heartbeats. An agent with a longer time is refused, because
// routers would trust its load for three heartbeats, and keep a dead node for six.
const (
	DefaultHeartbeat = 5 * time.Second
	MaxHeartbeat     = 5 * time.Minute
)

// Heartbeat returns the time between two heartbeats of the agent. The time is at least
// DefaultHeartbeat, also if the agent gives none.
func (h *NodeHealth) Heartbeat() time.Duration {
	return max(time.Duration(h.HeartbeatS*float64(time.Second)), DefaultHeartbeat)
}

// Limits of one node's value.
const (
	maxValueBytes = 64 << 10
	maxModels     = 1024
	maxModelBytes = 512
	maxVersion    = 64  // bytes of an engine's version
	maxGPUModel   = 256 // bytes of the names of a node's GPUs
	maxSlots      = load.MaxRequests
	// maxModelsJSON leaves room for the rest of a value within maxValueBytes.
	maxModelsJSON = maxValueBytes - 16<<10
)

// ParseNodeHealth parses and checks the value of a node's key. ParseNodeHealth ignores unknown
// members. An error means that the value must not be used at all, and the node keeps its earlier
// state. Invalid optional addresses, labels and experts, and a connector that is not known here or
// not the engine's, are left out. LeftOut gives the reason. The node serves without them.
func ParseNodeHealth(id string, value []byte) (*NodeHealth, error) {
	h := &NodeHealth{}
	if err := readValue("node", id, value, h); err != nil {
		return nil, err
	}
	h.fitOptional()
	if err := h.Check(); err != nil {
		return nil, fmt.Errorf("node %s: %w", id, err)
	}
	return h, nil
}

// readValue reads the value of the key of a node or cache into to.
func readValue(kind, id string, value []byte, to Record) error {
	if len(value) > maxValueBytes {
		return fmt.Errorf("%s %s: value has %d bytes; at most %d are read", kind, id, len(value), maxValueBytes)
	}
	if err := json.Unmarshal(value, to); err != nil {
		return fmt.Errorf("%s %s: %w", kind, id, err)
	}
	if said := to.claim().id; said != id {
		return fmt.Errorf("%s %s: the value says %s_id %q", kind, id, kind, said)
	}
	return nil
}

func (h *NodeHealth) fitOptional() {
	var errs []error
	for _, p := range h.places() {
		if err := CheckPlace(p.field, *p.at); err != nil {
			*p.at = ""
			errs = append(errs, fmt.Errorf("%w; the node is used without it", err))
		}
	}
	h.fitNames()
	if err := CheckConnector(h.Engine, h.Connector); err != nil {
		h.Connector = ""
		errs = append(errs, fmt.Errorf("connector: %w; the node is used without it", err))
	}
	if err := CheckBootstrap(h.Bootstrap); err != nil {
		h.Bootstrap = ""
		errs = append(errs, fmt.Errorf("%w; the node is used without it", err))
	}
	if err := CheckLabels(h.Labels); err != nil {
		h.Labels = nil
		errs = append(errs, fmt.Errorf("labels: %w; the node is used without labels", err))
	}
	if err := h.Experts.Check(); err != nil {
		h.Experts = nil
		errs = append(errs, fmt.Errorf("experts: %w; the node is used without experts", err))
	}
	h.LeftOut = errors.Join(errs...)
}

// place is one of a node's optional addresses.
type place struct {
	field string
	at    *string
}

func (h *NodeHealth) places() [3]place {
	return [...]place{{"push_address", &h.PushAddress}, {"kv_address", &h.KVAddress}, {"kv_events", &h.KVEvents}}
}

// Check validates h as a whole, fills in the default role, and returns all problems together.
func (h *NodeHealth) Check() error {
	role, roleErr := ParseRole(string(h.Role))
	errs := []error{CheckNodeID(h.NodeID), checkAddress(h.Address), roleErr, checkModels(h.Models), h.checkAdapters()}
	for _, p := range h.places() {
		errs = append(errs, CheckPlace(p.field, *p.at))
	}
	if err := CheckConnector(h.Engine, h.Connector); err != nil {
		errs = append(errs, fmt.Errorf("connector: %w", err))
	}
	errs = append(errs, CheckBootstrap(h.Bootstrap))
	for name, slots := range map[string]int{"max_concurrent": h.MaxConcurrent, "engine_slots": h.EngineSlots} {
		if slots < 0 || slots > maxSlots {
			errs = append(errs, fmt.Errorf("%s %d is not in 0..%d", name, slots, maxSlots))
		}
	}
	if err := CheckBatch(h.MaxBatchedTokens); err != nil {
		errs = append(errs, fmt.Errorf("max_batched_tokens: %w", err))
	}
	if most := MaxHeartbeat.Seconds(); !(h.HeartbeatS >= 0 && h.HeartbeatS <= most) {
		errs = append(errs, fmt.Errorf("heartbeat_s %g is not in 0..%g", h.HeartbeatS, most))
	}
	if h.TP < 0 || h.VRAMBytes < 0 || h.Stamp < 0 || h.BlockTokens < 0 {
		errs = append(errs, fmt.Errorf("tp %d, vram_bytes %d, block_tokens %d and stamp %d must not be negative",
			h.TP, h.VRAMBytes, h.BlockTokens, h.Stamp))
	}
	if err := CheckDataParallel(h.DataParallel); err != nil {
		errs = append(errs, fmt.Errorf("data_parallel_size: %w", err))
	}
	if err := CheckLabels(h.Labels); err != nil {
		errs = append(errs, fmt.Errorf("labels: %w", err))
	}
	if err := h.Experts.Check(); err != nil {
		errs = append(errs, fmt.Errorf("experts: %w", err))
	}
	errs = append(errs, h.Load.Check())
	if err := errors.Join(errs...); err != nil {
		return err
	}
	h.Role = role
	return nil
}

// maxBatch bounds the tokens of one step, far above real values.
const maxBatch = 1 << 30

// CheckBatch validates the number of tokens that an engine computes in one step.
func CheckBatch(tokens int) error {
	if tokens < 0 || tokens > maxBatch {
		return fmt.Errorf("%d is not in 0..%d; 0 is unknown", tokens, maxBatch)
	}
	return nil
}

// CheckDataParallel validates the number of an engine's data-parallel ranks.
func CheckDataParallel(ranks int) error {
	if ranks < 0 || ranks > load.MaxRanks {
		return fmt.Errorf("%d is not in 0..%d; 0 is unknown", ranks, load.MaxRanks)
	}
	return nil
}

func (h *NodeHealth) claim() claim {
	return claim{key: NodeKey(h.NodeID), id: h.NodeID, address: h.Address}
}

func (h *NodeHealth) mark(instance string, stamp int64) { h.Instance, h.Stamp = instance, stamp }

// Fit makes the engine's part of h valid for the announcement. Figures out of their bounds, and
// impossible slots, become unknown. Models that no router would accept are left out. Fit does not
// change the operator's settings, which Check checks.
func (h *NodeHealth) Fit() {
	h.Load.Fit()
	if h.EngineSlots < 0 || h.EngineSlots > maxSlots {
		h.EngineSlots = 0
	}
	h.Models, _ = FitModels(h.Models)
	h.fitNames()
	h.fitAdapters()
}

// fitNames makes an engine's version and a GPU's name unknown if they are too long to be one.
func (h *NodeHealth) fitNames() {
	if len(h.EngineVersion) > maxVersion {
		h.EngineVersion = ""
	}
	if len(h.GPUModel) > maxGPUModel {
		h.GPUModel = ""
	}
}

// FitModels returns the names that a node can announce, in order, and how many are left out.
// FitModels leaves out empty names, names that are too long, and names beyond the size of one value
// in etcd.
func FitModels(names []string) (fit []string, leftOut int) {
	fit = make([]string, 0, min(len(names), maxModels))
	room := maxModelsJSON
	for _, name := range names {
		encoded, err := json.Marshal(name)
		cost := len(encoded) + len(",")
		if err == nil && modelFits(name) && len(fit) < maxModels && cost <= room {
			fit = append(fit, name)
			room -= cost
		}
	}
	return fit, len(names) - len(fit)
}

func modelFits(name string) bool { return name != "" && len(name) <= maxModelBytes }

func checkModels(models []string) error {
	if len(models) > maxModels {
		return fmt.Errorf("%d models; at most %d are allowed", len(models), maxModels)
	}
	if slices.ContainsFunc(models, func(name string) bool { return !modelFits(name) }) {
		return fmt.Errorf("models holds an empty name or one above %d bytes", maxModelBytes)
	}
	return nil
}

// checkAddress accepts what address.Parse accepts.
func checkAddress(url string) error {
	_, err := address.Parse(url)
	return err
}
