package cluster

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/internal/address"
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

// NodeHealth is what an agent writes about its node, at every heartbeat. Measurements that the agent cannot make are
// unknown, never zero.
type NodeHealth struct {
	NodeID      string   `json:"node_id"`
	Address     string   `json:"address"`                // URL of the agent's front: http://host:port, https://host:port or unix:///path
	PushAddress string   `json:"push_address,omitempty"` // where the agent tells of load as it changes, over gRPC, with TLS if Address has it: host:port or unix:///path
	KVAddress   string   `json:"kv_address,omitempty"`   // of the host's cgn-kvcached, as CacheHealth has it: QUIC, else TLS, else GRPC
	KVEvents    string   `json:"kv_events,omitempty"`    // gRPC address at which the agent itself serves Kv.Watch: host:port with mutual TLS, or unix:///path
	Instance    string   `json:"instance,omitempty"`     // random token of the agent that owns the key
	Role        Role     `json:"role,omitempty"`
	Engine      string   `json:"engine,omitempty"` // vllm, sglang, llama_cpp or openai_compat
	Models      []string `json:"models"`
	Device      string   `json:"device,omitempty"` // gpu or cpu
	GPUIndex    int      `json:"gpu_index"`
	TP          int      `json:"tp,omitempty"` // tensor-parallel width; 0 = unknown
	DType       string   `json:"dtype,omitempty"`
	VRAMBytes   int64    `json:"vram_bytes,omitempty"` // 0 = unknown

	MaxConcurrent int   `json:"max_concurrent,omitempty"` // requests the engine works on at once; 0 = unknown
	InFlight      Gauge `json:"in_flight,omitzero"`       // requests in the engine, running and waiting
	QueueDepth    Gauge `json:"queue_depth,omitzero"`     // of those, waiting
	FreeBlocks    Gauge `json:"free_blocks,omitzero"`     // KV blocks of the engine's size
	TotalBlocks   Gauge `json:"total_blocks,omitzero"`
	BlockTokens   int   `json:"block_tokens,omitempty"` // tokens per KV block of the engine; 0 = unknown

	SMPct           Gauge `json:"sm_pct,omitzero"`            // 0..100
	CPUPct          Gauge `json:"cpu_pct,omitzero"`           // of the engine's processes; 100 is one CPU
	EngineWaitPct   Gauge `json:"engine_wait_pct,omitzero"`   // wait of their threads for one; 100 is one thread that always waits
	RunqUsP99       Gauge `json:"runq_us_p99,omitzero"`       // wait of the host's threads for a CPU
	SRTTUsP50       Gauge `json:"srtt_us_p50,omitzero"`       // round trip to the front's clients
	RetransPPM      Gauge `json:"retrans_ppm,omitzero"`       // segments sent to them again, in a million
	PowerWatts      Gauge `json:"power_watts,omitzero"`       // the node's part of what its host draws: all of it where the host has one node
	PowerWattsAvg30 Gauge `json:"power_watts_avg30,omitzero"` // mean of the last 30 s

	PowerSource string `json:"power_source,omitempty"` // who says the watts: redfish, dcmi, nvml, rapl, nvml+rapl; empty: unknown
	// Ages at Stamp of the samples behind cpu_pct, engine_wait, runq, srtt and retrans; sm_pct; and power.
	KernelAgeMs Gauge `json:"kernel_age_ms,omitzero"`
	SMAgeMs     Gauge `json:"sm_age_ms,omitzero"`
	PowerAgeMs  Gauge `json:"power_age_ms,omitzero"`

	KVEpoch uint64 `json:"kv_epoch,omitempty"` // changes when the engine's cache starts empty
	Ready   bool   `json:"ready"`
	Version string `json:"version,omitempty"`
	Stamp   int64  `json:"stamp"` // Unix milliseconds at the agent; changes with every heartbeat

	LeftOut error `json:"-"` // of ParseNodeHealth: why optional places that the value names are empty here; nil: they are not
}

// limits on what one node may claim.
const (
	maxValueBytes = 64 << 10
	maxModels     = 1024
	maxModelBytes = 512
	maxSlots      = 1 << 20
	// maxModelsJSON leaves the rest of a value its share of maxValueBytes.
	maxModelsJSON = maxValueBytes - 8<<10
)

// ParseNodeHealth reads and checks the value of a node's key. Unknown members are ignored. An error means that the value
// must not be used at all: what was known before stays. Optional places that are none are left out instead, and LeftOut says so:
// the node serves without them.
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
	if h.MaxConcurrent < 0 || h.MaxConcurrent > maxSlots {
		errs = append(errs, fmt.Errorf("max_concurrent %d is not in 0..%d", h.MaxConcurrent, maxSlots))
	}
	if h.TP < 0 || h.VRAMBytes < 0 || h.Stamp < 0 || h.BlockTokens < 0 {
		errs = append(errs, fmt.Errorf("tp %d, vram_bytes %d, block_tokens %d and stamp %d must not be negative",
			h.TP, h.VRAMBytes, h.BlockTokens, h.Stamp))
	}
	errs = append(errs, h.checkGauges()...)
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

// measurement is one of a node's gauges and the range it may have.
type measurement struct {
	name  string
	value *Gauge
	most  float64
}

func (m measurement) outOfRange() bool {
	v, known := m.value.Get()
	return known && (v < 0 || v > m.most)
}

func (h *NodeHealth) measurements() []measurement {
	return []measurement{
		{"in_flight", &h.InFlight, maxSlots}, {"queue_depth", &h.QueueDepth, maxSlots},
		{"free_blocks", &h.FreeBlocks, 1e12}, {"total_blocks", &h.TotalBlocks, 1e12},
		{"sm_pct", &h.SMPct, 100}, {"cpu_pct", &h.CPUPct, 1e6},
		{"engine_wait_pct", &h.EngineWaitPct, 1e6}, {"runq_us_p99", &h.RunqUsP99, 1e12}, {"srtt_us_p50", &h.SRTTUsP50, 1e12}, {"retrans_ppm", &h.RetransPPM, 1e6},
		{"power_watts", &h.PowerWatts, 1e7}, {"power_watts_avg30", &h.PowerWattsAvg30, 1e7},
		{"kernel_age_ms", &h.KernelAgeMs, 1e12}, {"sm_age_ms", &h.SMAgeMs, 1e12}, {"power_age_ms", &h.PowerAgeMs, 1e12},
	}
}

func (h *NodeHealth) checkGauges() (errs []error) {
	for _, m := range h.measurements() {
		if m.outOfRange() {
			errs = append(errs, fmt.Errorf("%s %s is not in 0..%g", m.name, m.value, m.most))
		}
	}
	return errs
}

// Fit makes what an engine says of itself fit to be announced: measurements out of their range become unknown, slots that
// cannot be true too, and models that no router would take are left out. What the operator sets is Check's to judge.
func (h *NodeHealth) Fit() {
	h.FitMeasurements()
	if h.MaxConcurrent < 0 || h.MaxConcurrent > maxSlots {
		h.MaxConcurrent = 0
	}
	h.Models, _ = FitModels(h.Models)
}

// FitMeasurements makes measurements unknown that are out of their range.
func (h *NodeHealth) FitMeasurements() {
	for _, m := range h.measurements() {
		if m.outOfRange() {
			*m.value = Gauge{}
		}
	}
}

// FitModels returns the names that a node can announce, in their order, and how many are left out: empty and overlong
// ones, and those beyond what one value in etcd may hold.
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
