package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/load"
)

// Role is what a node does with a request.
type Role string

// The roles of design: a node that prefills, one that decodes, one that does both.
const (
	RolePrefill Role = "prefill"
	RoleDecode  Role = "decode"
	RoleBoth    Role = "both"
)

// ParseRole reads a role; empty means both.
func ParseRole(s string) (Role, error) {
	switch r := Role(s); r {
	case "":
		return RoleBoth, nil
	case RolePrefill, RoleDecode, RoleBoth:
		return r, nil
	}
	return "", fmt.Errorf("role %q is none of prefill, decode, both", s)
}

// NodeHealth is what an agent writes about its node, at every heartbeat. Figures that the agent
// does not know are left out, and never zero.
type NodeHealth struct {
	NodeID string `json:"node_id"`
	// Address is the URL of the agent's front: http://host:port, https://host:port or unix:///path.
	Address string `json:"address"`
	// PushAddress is where the agent tells of load as it changes: host:port or unix:///path. It is
	// gRPC, with TLS if Address has it.
	PushAddress string `json:"push_address,omitempty"`
	// KVAddress is that of the host's cgn-kvcached, as CacheHealth has it: QUIC, else TLS, else
	// gRPC.
	KVAddress string `json:"kv_address,omitempty"`
	// KVEvents is where the agent itself serves Kv.Watch: host:port with mutual TLS, or
	// unix:///path.
	KVEvents string   `json:"kv_events,omitempty"`
	Instance string   `json:"instance,omitempty"` // random token of the agent that owns the key
	Role     Role     `json:"role,omitempty"`
	Engine   string   `json:"engine,omitempty"` // vllm, sglang, llama_cpp or openai_compat
	Models   []string `json:"models"`
	Hardware

	MaxConcurrent int `json:"max_concurrent,omitempty"` // requests at once, as the operator states; 0: not stated
	EngineSlots   int `json:"engine_slots,omitempty"`   // requests at once, as the engine says; 0: unknown
	BlockTokens   int `json:"block_tokens,omitempty"`   // tokens per KV block of the engine; 0: unknown

	load.Load
	// PowerSource says who measures the power: redfish, dcmi, nvml, rapl or nvml+rapl; empty:
	// unknown.
	PowerSource string `json:"power_source,omitempty"`

	KVEpoch uint64 `json:"kv_epoch,omitempty"` // changes when the engine's cache starts empty
	Ready   bool   `json:"ready"`
	Version string `json:"version,omitempty"`
	// HeartbeatS is the time between two heartbeats in seconds; 0: not said. See Heartbeat.
	HeartbeatS float64 `json:"heartbeat_s,omitempty"`
	Stamp      int64   `json:"stamp"` // Unix milliseconds at the agent; changes with every heartbeat

	// LeftOut is set by ParseNodeHealth: why optional places that the value names are empty here.
	LeftOut error `json:"-"`
}

// Hardware is what the engine runs on.
type Hardware struct {
	Device    string `json:"device,omitempty"` // gpu or cpu
	GPUIndex  int    `json:"gpu_index"`
	TP        int    `json:"tp,omitempty"` // tensor-parallel width; 0: unknown
	DType     string `json:"dtype,omitempty"`
	VRAMBytes int64  `json:"vram_bytes,omitempty"` // 0: unknown
}

// Bounds of the time between two heartbeats. An agent that asks for more is refused: for three
// heartbeats routers would trust its load, and for six keep a node that has died.
const (
	DefaultHeartbeat = 5 * time.Second
	MaxHeartbeat     = 5 * time.Minute
)

// Heartbeat is the time between two heartbeats of the agent, DefaultHeartbeat where it says less or
// nothing.
func (h *NodeHealth) Heartbeat() time.Duration {
	return max(time.Duration(h.HeartbeatS*float64(time.Second)), DefaultHeartbeat)
}

// limits on what one node may claim.
const (
	maxValueBytes = 64 << 10
	maxModels     = 1024
	maxModelBytes = 512
	maxSlots      = load.MaxRequests
	// maxModelsJSON leaves the rest of a value its share of maxValueBytes.
	maxModelsJSON = maxValueBytes - 8<<10
)

// ParseNodeHealth reads and checks the value of a node's key. Unknown members are ignored. An error
// means that the value must not be used at all: the node stays as it was known before. Optional
// places that cannot be used are left out instead, and LeftOut says so: the node serves without
// them.
func ParseNodeHealth(id string, value []byte) (*NodeHealth, error) {
	if len(value) > maxValueBytes {
		return nil, fmt.Errorf("node %s: value has %d bytes; at most %d are read", id, len(value), maxValueBytes)
	}
	h := &NodeHealth{}
	if err := json.Unmarshal(value, h); err != nil {
		return nil, fmt.Errorf("node %s: %w", id, err)
	}
	if h.NodeID != id {
		return nil, fmt.Errorf("node %s: the value says node_id %q", id, h.NodeID)
	}
	h.fitPlaces()
	if err := h.Check(); err != nil {
		return nil, fmt.Errorf("node %s: %w", id, err)
	}
	return h, nil
}

func (h *NodeHealth) fitPlaces() {
	var errs []error
	for _, p := range h.places() {
		if err := CheckPlace(p.field, *p.at); err != nil {
			*p.at = ""
			errs = append(errs, fmt.Errorf("%w; the node is used without it", err))
		}
	}
	h.LeftOut = errors.Join(errs...)
}

// place is one of a node's optional places.
type place struct {
	field string
	at    *string
}

func (h *NodeHealth) places() [3]place {
	return [...]place{{"push_address", &h.PushAddress}, {"kv_address", &h.KVAddress}, {"kv_events", &h.KVEvents}}
}

// Check validates h as a whole and fills in the default role. All problems are reported together.
func (h *NodeHealth) Check() error {
	role, roleErr := ParseRole(string(h.Role))
	errs := []error{CheckNodeID(h.NodeID), checkAddress(h.Address), roleErr, checkModels(h.Models)}
	for _, p := range h.places() {
		errs = append(errs, CheckPlace(p.field, *p.at))
	}
	for name, slots := range map[string]int{"max_concurrent": h.MaxConcurrent, "engine_slots": h.EngineSlots} {
		if slots < 0 || slots > maxSlots {
			errs = append(errs, fmt.Errorf("%s %d is not in 0..%d", name, slots, maxSlots))
		}
	}
	if most := MaxHeartbeat.Seconds(); !(h.HeartbeatS >= 0 && h.HeartbeatS <= most) {
		errs = append(errs, fmt.Errorf("heartbeat_s %g is not in 0..%g", h.HeartbeatS, most))
	}
	if h.TP < 0 || h.VRAMBytes < 0 || h.Stamp < 0 || h.BlockTokens < 0 {
		errs = append(errs, fmt.Errorf("tp %d, vram_bytes %d, block_tokens %d and stamp %d must not be negative",
			h.TP, h.VRAMBytes, h.BlockTokens, h.Stamp))
	}
	errs = append(errs, h.Load.Check())
	if err := errors.Join(errs...); err != nil {
		return err
	}
	h.Role = role
	return nil
}

func (h *NodeHealth) claim() claim {
	return claim{key: NodeKey(h.NodeID), id: h.NodeID, address: h.Address}
}

func (h *NodeHealth) mark(instance string, stamp int64) { h.Instance, h.Stamp = instance, stamp }

// Fit makes the engine's part of h fit to be announced. Figures out of their bounds become unknown,
// and so do slots that cannot be true. Models that no router would take are left out. What the
// operator states is left to Check.
func (h *NodeHealth) Fit() {
	h.Load.Fit()
	if h.EngineSlots < 0 || h.EngineSlots > maxSlots {
		h.EngineSlots = 0
	}
	h.Models, _ = FitModels(h.Models)
}

// FitModels returns the names that a node can announce, in their order, and how many are left out:
// empty and overlong ones, and those beyond the size of one value in etcd.
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
	if !allFit(models) {
		return fmt.Errorf("models holds an empty name or one above %d bytes", maxModelBytes)
	}
	return nil
}

func allFit(models []string) bool {
	for _, name := range models {
		if !modelFits(name) {
			return false
		}
	}
	return true
}

// checkAddress accepts what address.Parse accepts.
func checkAddress(url string) error {
	_, err := address.Parse(url)
	return err
}
