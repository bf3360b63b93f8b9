package engine

import (
	"cmp"
	"encoding/json"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/listen"
)

// Handover returns how the engine hands KV blocks to other engines in this role, or takes them: a
// connector of package cluster, "" for none, and the address of its bootstrap server for the node's
// heartbeat, "" if the connector or the role needs none.
func (c *Config) Handover(role string) (connector, bootstrap string) {
	stated := cmp.Or(c.Connector, c.rendered())
	if stated == cluster.ConnectorKVCached && !c.handsCached(role) {
		stated = ""
	}
	connector = cluster.Hands(c.Kind, stated, cluster.Role(role))
	if !cluster.NeedsBootstrap(connector) || role == roleDecode {
		return connector, ""
	}
	return connector, cmp.Or(c.Bootstrap, ":"+c.bootstrapPort())
}

// handsCached says whether an engine that keeps blocks in the cache hands them over by it. Most
// engines of role both only keep them there, so such an engine must state the connector.
func (c *Config) handsCached(role string) bool {
	return role == rolePrefill || role == roleDecode || c.Connector == cluster.ConnectorKVCached
}

// BootstrapPort returns the port of a started engine's bootstrap server in this role; 0: it has
// none.
func (c *Config) BootstrapPort(role string) int {
	if _, at := c.Handover(role); at == "" || !c.Spawns() {
		return 0
	}
	port, _ := strconv.Atoi(c.bootstrapPort())
	return port
}

// bootstrapPort returns the port of the engine's bootstrap server: that of the setting, of a
// started engine's own arguments or environment, or the usual one.
func (c *Config) bootstrapPort() string {
	port := ""
	switch {
	case c.Bootstrap != "":
		_, port, _ = net.SplitHostPort(c.Bootstrap)
	case !c.Spawns():
	case c.Kind == SGLang:
		port = c.arg(bootstrapArg)
	case c.Kind == VLLM:
		port = c.variable(mooncakePort)
	}
	if port == "" || cluster.CheckBootstrap(":"+port) != nil {
		return cluster.BootstrapPort
	}
	return port
}

// transfers returns the part of kv_offload that hands blocks over: nixl, mooncake, kvcached or "".
func (c *Config) transfers() string {
	switch part, _, _ := strings.Cut(c.KVOffload, "+"); part {
	case OffloadNIXL, OffloadMooncake, OffloadKVCached:
		return part
	}
	return ""
}

// rendered returns the connector of a started engine by its command: by kv_offload, or by its
// arguments.
func (c *Config) rendered() string {
	switch part := c.transfers(); {
	case !c.Spawns():
	case c.Kind == SGLang && (part != "" || slices.Contains([]string{rolePrefill, roleDecode}, c.arg(modeArg))):
		return cluster.ConnectorSGLang
	case c.Kind == VLLM && part != "":
		return part // kv_offload names them as package cluster does
	case c.Kind == VLLM:
		name, _ := c.transferConfig()
		return name
	}
	return ""
}

// These arguments of an SGLang have its role, the software that moves blocks, and the port of its
// bootstrap server.
const (
	modeArg      = "--disaggregation-mode"
	backendArg   = "--disaggregation-transfer-backend"
	bootstrapArg = "--disaggregation-bootstrap-port"
)

// transferConfig reads the argument --kv-transfer-config of a started vLLM: the connector that it
// configures, and vLLM's word for the role. A MultiConnector or PdConnector has the connector of
// one of its parts.
func (c *Config) transferConfig() (name, role string) {
	type part struct {
		Connector string `json:"kv_connector"`
		Role      string `json:"kv_role"`
	}
	var said struct {
		part
		Extra struct {
			Connectors []part `json:"connectors"`
		} `json:"kv_connector_extra_config"`
	}
	if json.Unmarshal([]byte(c.arg("--kv-transfer-config")), &said) != nil {
		return "", ""
	}
	for _, p := range append([]part{said.part}, said.Extra.Connectors...) {
		if known := vllmConnectors[p.Connector]; known != "" {
			return known, p.Role
		}
	}
	return "", ""
}

// vllmConnectors are vLLM's names of connectors. Its NixlPushConnector works otherwise, and is not
// among them.
var vllmConnectors = map[string]string{
	"NixlConnector": cluster.ConnectorNIXL, "NixlPullConnector": cluster.ConnectorNIXL,
	"MooncakeConnector": cluster.ConnectorMooncake, "KVCachedConnector": cluster.ConnectorKVCached,
}

// flagName returns the name of the flag that an argument is or begins with, with hyphens in place
// of underscores as vLLM reads it.
func flagName(arg string) string {
	name, _, _ := strings.Cut(arg, "=")
	return strings.ReplaceAll(name, "_", "-")
}

// arg returns the value of a flag among the configured arguments, the last one if it is repeated;
// "": there is none.
func (c *Config) arg(name string) (value string) {
	for i, a := range c.Args {
		if flagName(a) != name {
			continue
		}
		if _, own, ok := strings.Cut(a, "="); ok {
			value = own
		} else if i+1 < len(c.Args) {
			value = c.Args[i+1]
		}
	}
	return value
}

// variable returns a variable of a started engine's environment.
func (c *Config) variable(name string) string {
	value := os.Getenv(name)
	for _, e := range c.Env {
		if n, v, _ := strings.Cut(e, "="); n == name {
			value = v
		}
	}
	return value
}

// validateConnector checks connector and bootstrap as far as they do not depend on the role.
func (c *Config) validateConnector(bad func(field, format string, args ...any)) {
	if err := cluster.CheckConnector(c.Kind, c.Connector); err != nil {
		bad("connector", "%w", err)
	} else if own := c.rendered(); own != "" && c.Connector != "" && c.Connector != own {
		bad("connector", "%q, but %s and args make it %q; leave it out", c.Connector, config.Mention{Key: "kv_offload"},
			own)
	}
	if cluster.CheckBootstrap(c.Bootstrap) != nil {
		bad("bootstrap", "%q is neither host:port nor :port, for the host of the node's own address", c.Bootstrap)
	}
}

// ValidateRole calls bad for each setting that the engine cannot have in this role of its node,
// with the setting's key and what is possible.
func (c *Config) ValidateRole(role string, bad func(key, format string, args ...any)) {
	if connector, at := c.Handover(role); at == "" && c.Bootstrap != "" {
		bad("bootstrap", "only engines that prefill with the connector sglang or mooncake have a bootstrap server, and this "+
			"one has role %s and %s; leave it out", role, orNone(connector))
	}
	if role != rolePrefill && role != roleDecode {
		c.validateBoth(bad)
		return
	}
	if c.Kind == LlamaCPP {
		bad("role", "%s: a llama_cpp cannot hand KV blocks to another engine, or take them; possible: both", role)
		return
	}
	known := c.rendered() != "" || !c.Spawns() && c.Kind != OpenAICompat
	if c.Connector == "" && !known {
		c.badHandover(role, bad)
		return
	}
	if mode := c.arg(modeArg); c.Kind == SGLang && mode != "" && mode != role {
		bad("args", "%s is %s, and the node's role is %s; give both the same", modeArg, mode, role)
	}
	if name, said := c.transferConfig(); name != "" && said != "" && said != "kv_both" && said != kvRole(role) {
		bad("args", "--kv-transfer-config has kv_role %s, and the node's role is %s, which is %s in vLLM", said, role,
			kvRole(role))
	}
}

// badHandover says what is possible for an engine in a role without a connector.
func (c *Config) badHandover(role string, bad func(key, format string, args ...any)) {
	possible, byHand := []string{}, map[string]string{VLLM: "--kv-transfer-config", SGLang: modeArg}[c.Kind]
	for _, o := range offloads[c.Kind] {
		if with := (Config{KVOffload: o}); with.transfers() != "" {
			possible = append(possible, o)
		}
	}
	if len(possible) == 0 {
		bad("connector", "empty, and the node's role is %s: name how the engine hands KV blocks over; possible: %s", role,
			strings.Join(cluster.ConnectorsOf(c.Kind), ", "))
		return
	}
	bad("kv_offload", "%s cannot hand KV blocks to another engine, or take them, as role %s needs; possible: %s, or %s in args",
		orNone(c.KVOffload), role, strings.Join(possible, ", "), byHand)
}

// validateBoth checks an engine that both prefills and decodes.
func (c *Config) validateBoth(bad func(key, format string, args ...any)) {
	const fix = "set the node's role to prefill or decode, or choose another"
	switch {
	case !c.Spawns():
	case c.KVOffload == OffloadNIXLKVBM:
		bad("kv_offload", "%s: KVBM beside NIXL only hands blocks over, in role prefill; %s, such as kvbm or nixl",
			c.KVOffload, fix)
	case c.Kind == SGLang && c.transfers() != "":
		bad("kv_offload", "%s: an SGLang hands blocks over, or takes them, in role prefill or decode only; %s: none or hicache",
			c.KVOffload, fix)
	case c.Kind == SGLang && c.rendered() != "":
		bad("args", "%s is %s, and the node's role is both; give the node the same role", modeArg, c.arg(modeArg))
	}
}

func orNone(name string) string {
	if name == "" {
		return "no connector"
	}
	return name
}

// HandoverHidden says why engines of other hosts may not reach what an engine that prefills must
// show them: an SGLang's bootstrap server, or the side channel of vLLM's NIXL. Mooncake's bootstrap
// server in vLLM listens on all addresses. The key of the setting comes first; "": nothing is known
// to be in the way.
func (c *Config) HandoverHidden(connector string) (key, why string) {
	if !c.Spawns() {
		return c.attachedHidden(connector)
	}
	switch {
	case connector == cluster.ConnectorSGLang && onLoopback(c.listenHost()):
		return "host", c.listenHost() + " is where the bootstrap server of this SGLang listens too, and no other host " +
			"reaches it; give an address that they reach"
	case connector != cluster.ConnectorNIXL:
	case c.transfers() == "" && c.variable(sideChannelHost) == "":
		return "env", "it has no " + sideChannelHost + ", which is localhost by default; give the address of this host"
	case onLoopback(cmp.Or(c.variable(sideChannelHost), c.Offload.NIXLHost)):
		return "offload.nixl_host", "the side channel of NIXL listens on loopback alone; give the address of this host"
	}
	return "", ""
}

// attachedHidden is HandoverHidden for an attached engine, of which only the URL is known.
func (c *Config) attachedHidden(connector string) (key, why string) {
	if at, err := address.Parse(c.URL); err != nil || at.Network == "tcp" && !listen.Loopback(at.Addr) {
		return "", ""
	}
	switch connector {
	case cluster.ConnectorSGLang:
		return "url", "the bootstrap server of an SGLang listens where the SGLang does; make sure that this is not loopback alone"
	case cluster.ConnectorNIXL:
		return "url", "the engine is on this host; make sure that its " + sideChannelHost + " is not localhost, the " +
			"default"
	}
	return "", ""
}

func onLoopback(host string) bool { return host != "" && listen.Loopback(net.JoinHostPort(host, "1")) }
