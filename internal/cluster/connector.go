package cluster

import (
	"fmt"
	"net"
	"slices"
	"strings"
)

// These are the connectors: how a node that prefills hands a prompt's KV blocks to a node that
// decodes.
const (
	ConnectorNIXL     = "nixl"     // vLLM, NixlConnector
	ConnectorMooncake = "mooncake" // vLLM, MooncakeConnector
	ConnectorKVCached = "kvcached" // vLLM, KVCachedConnector of deploy/vllm: through the hosts' cache daemons
	ConnectorSGLang   = "sglang"   // SGLang, with its bootstrap server
	ConnectorTRTLLM   = "trtllm"   // TensorRT-LLM, schedule style context_first
	// ConnectorTRTLLMGeneration is TensorRT-LLM with schedule style generation_first.
	ConnectorTRTLLMGeneration = "trtllm-generation-first"
)

// BootstrapPort is the usual port of the bootstrap servers of SGLang and of Mooncake in vLLM.
const BootstrapPort = "8998"

// connectors lists all connectors.
var connectors = []string{
	ConnectorNIXL, ConnectorMooncake, ConnectorKVCached, ConnectorSGLang, ConnectorTRTLLM, ConnectorTRTLLMGeneration,
}

// ConnectorsOf returns the connectors that an engine of this kind can use. For openai_compat and an
// unknown kind these are all connectors. The caller must not change the list.
func ConnectorsOf(engine string) []string {
	switch engine {
	case "vllm":
		return connectors[:3:3]
	case "sglang":
		return connectors[3:4:4]
	case "trtllm":
		return connectors[4:]
	case "llama_cpp":
		return nil
	}
	return connectors
}

// DefaultConnector returns the connector of an engine that prefills or decodes for others and whose
// connector is not stated; "": none is known.
func DefaultConnector(engine string) string {
	switch engine {
	case "vllm":
		return ConnectorNIXL
	case "sglang":
		return ConnectorSGLang
	case "trtllm":
		return ConnectorTRTLLM
	}
	return ""
}

// Hands returns the connector by which an engine hands blocks over as a prefill node, or takes them
// as a decode node; "": it does neither. stated is its stated connector. In role both an engine
// uses a connector only if one is stated. In the other roles that of the engine's kind is the
// default. An engine that cannot use the stated connector uses none.
func Hands(engine, stated string, role Role) string {
	switch {
	case stated == "" && role != RoleBoth:
		return DefaultConnector(engine)
	case CheckConnector(engine, stated) != nil:
		return ""
	}
	return stated
}

// Hands returns the connector that the node has in its own role; see the function Hands.
func (h *NodeHealth) Hands() string { return Hands(h.Engine, h.Connector, h.Role) }

// NeedsBootstrap says whether the router names the bootstrap server of the prefilling node to the
// decoding node.
func NeedsBootstrap(connector string) bool {
	return connector == ConnectorSGLang || connector == ConnectorMooncake
}

// CheckConnector accepts an empty name, and a connector that an engine of this kind can use. The
// error names the possible ones.
func CheckConnector(engine, name string) error {
	possible := ConnectorsOf(engine)
	switch {
	case name == "" || slices.Contains(possible, name):
		return nil
	case !slices.Contains(connectors, name):
		return fmt.Errorf("%.40q is no connector; possible: %s", name, strings.Join(connectors, ", "))
	case len(possible) == 0:
		return fmt.Errorf("%s cannot hand KV blocks to another engine, so %q is impossible; leave it out", engine, name)
	}
	return fmt.Errorf("%s cannot use %q; possible: %s", engine, name, strings.Join(possible, ", "))
}

// CheckBootstrap accepts the address of a bootstrap server: host:port, or :port for the host of the
// node's own address. CheckBootstrap accepts an empty text too.
func CheckBootstrap(at string) error {
	if strings.HasPrefix(at, ":") {
		return checkHostPort("bootstrap", "host"+at)
	}
	return checkHostPort("bootstrap", at)
}

// ResolveBootstrap completes an address that CheckBootstrap accepts with the host of the node. The
// result is empty if at is, or if at has no host and host is empty.
func ResolveBootstrap(at, host string) string {
	port, ok := strings.CutPrefix(at, ":")
	switch {
	case !ok:
		return at
	case host == "":
		return ""
	}
	return net.JoinHostPort(host, port)
}
