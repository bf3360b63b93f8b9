package router

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
)

// Config holds all settings of the router. Every field has a safe default. The generated reference
// in deploy/reference/config.md lists all fields.
type Config struct {
	Router      RouterConfig    `toml:"router"`
	Backends    []BackendConfig `toml:"backend" help:"engines without an agent, one table each; --backend URL,key=value,... is the short form"`
	Models      []ModelConfig   `toml:"model" help:"settings of one served model, one table each; they override the settings for all models"`
	Etcd        cluster.Access  `toml:"etcd" help:"etcd, where agents announce themselves. Without endpoints the router has static backends only."`
	Prefix      PrefixConfig    `toml:"prefix"`
	Timeouts    TimeoutConfig   `toml:"timeouts"`
	Retry       RetryConfig     `toml:"retry"`
	Limits      LimitConfig     `toml:"limits"`
	LimitTables []LimitTable    `toml:"limit" help:"what tenants and models may take, one table each (docs/limits.md); keys have limits of their own, as cgn-ctl key create --limit sets them"`
	RateLimit   RateLimitConfig `toml:"ratelimit" help:"Redis, in which several routers count limits together (docs/limits.md). Without redis each router counts alone."`
	TLS         TLSConfig       `toml:"tls"`
	Auth        AuthConfig      `toml:"auth" help:"Who may use the serving port. Without keys, tokens and certificates with rights every client may, and only clients of this host, or with a certificate, may steer requests. With any of these the admin port asks who comes too."`
	AdminTLS    adminport.TLS   `toml:"admin_tls" help:"TLS of the admin port, and the certificates of its clients (docs/auth.md)."`
	Upstream    UpstreamTLS     `toml:"upstream_tls" help:"TLS towards agents that serve https. Without cert the router shows no certificate. A backend has settings of its own: ca, cert and cert_key."`
	Audit       audit.Config    `toml:"audit" help:"The audit log: one JSON line for each administrative act and each refused identity (docs/security.md)."`
	Usage       UsageConfig     `toml:"usage" help:"What clients use, added up by day, tenant, key and model (docs/usage.md)."`
	Log         LogConfig       `toml:"log" help:"The log, which goes to standard error, and the access log."`
	Traces      TraceConfig     `toml:"traces" help:"Traces of requests, as OpenTelemetry spans (docs/traces.md). Without endpoint the router records none, and passes traceparent and tracestate on as they are."`
	Takeover    TakeoverConfig  `toml:"takeover" help:"How a new router replaces a running router without losing a request. The new router gets the listening sockets, and the running router finishes the requests that it has begun."`

	Logger *slog.Logger `toml:"-"` // nil: slog.Default
}

// RouterConfig sets the process's addresses and its routing.
type RouterConfig struct {
	Listen         string          `toml:"listen" default:"127.0.0.1:8080" flag:"listen" help:"address of the OpenAI-compatible port (host:port, or unix:///path)"`
	Admin          string          `toml:"admin" default:"127.0.0.1:9091" flag:"admin" help:"address of the admin port: /readyz, /metrics, /busy_threshold, /debug"`
	Backends       []string        `toml:"backends" flag:"backend" split:"space" help:"an engine as URL[,id=,model=,role=,max_concurrent=,api_key_file=,ca=,cert=,cert_key=,kv=,kv-events=,kv-replay=,connector=,bootstrap=,label=,expert=,max_batched_tokens=,data_parallel_size=]; [[backend]] explains the keys; label and expert may be repeated"`
	InsecureListen bool            `toml:"insecure_listen" default:"false" flag:"insecure-listen" help:"allow listen beyond loopback without client certificates, and without API keys or tokens over TLS; without these clients of other hosts then get 403 for requests that steer the router, with x-cgn-node, x-data-parallel-rank or the other privileged fields and headers of docs/nvext.md"`
	InsecureAdmin  bool            `toml:"insecure_admin" default:"false" flag:"insecure-admin" help:"allow admin beyond loopback without client certificates (admin_tls.client_ca), and without API keys or tokens over TLS; /debug shows internals. Without these it takes changes only from the router's own host"`
	Mode           string          `toml:"mode" default:"" flag:"mode" help:"how nodes are picked: predicted, score, cost (or kv), round_robin, random, power_of_two, least_loaded, direct or device_aware; overrides only the mode of the fleet's policy, a policy of one model keeps its mode; empty: the policy's mode, which is predicted by default"`
	PolicyFile     string          `toml:"policy_file" default:"" flag:"policy-file" help:"file with the policy as JSON, reloaded when it changes; empty: the key /cognitora/routing/policy in etcd"`
	ForwardAuth    bool            `toml:"forward_auth" default:"false" flag:"forward-auth" help:"pass the client's Authorization header to backends without an api_key_file, and to agents; an agent drops the header unless its own agent.forward_auth is set"`
	PassNvext      bool            `toml:"nvext_passthrough" default:"false" flag:"nvext-passthrough" help:"leave the member nvext in the bodies that engines get, for engines that read it; the router checks and obeys it in any case"`
	Warm           int             `toml:"warm_connections" default:"4" help:"connections that the router opens to a node when the node joins or comes back, so that no first request waits for a TLS handshake; only to agents, vLLM and SGLang; 0: none"`
	WatchNodes     bool            `toml:"watch_nodes" default:"true" help:"ask the kernel every 50 ms whether nodes acknowledge packets, and let the kernel probe connections in use that are silent for 1 s; a node that is cut off gets no requests from its first retransmission timeout on"`
	KernelEvents   string          `toml:"kernel_events" default:"" flag:"kernel-events" help:"Unix socket of this host's agent (its telemetry.events) or of cgn-ctl bpf serve, which tells the router at once of retransmission timeouts, resets and failed connections to nodes, and of round trips to nodes; empty: the router relies on watch_nodes"`
	Promote        string          `toml:"promote" default:"fleet" flag:"promote" oneof:"off|disk|fleet" help:"which of the prompt's first 1,024 blocks the cache daemon on the picked node's host loads into RAM before the request arrives; disk: the blocks on the daemon's SSD; fleet: also the blocks that only other hosts hold; off: none. Unless off, the daemon is also asked for blocks that another host is about to store, in hand-overs by the connector kvcached (docs/disagg.md)"`
	DrainDelay     config.Duration `toml:"drain_delay" default:"5s" flag:"drain-delay" help:"time at a stop in which /readyz already fails and the router still accepts requests"`
	DrainTimeout   config.Duration `toml:"drain_timeout" default:"60s" flag:"drain-timeout" help:"time that running requests have to finish at a stop, after drain_delay; streams that are left then end with an error event; 0: they end at once"`
	OverloadStatus int             `toml:"overload_status" default:"503" help:"HTTP status of a request when every node that could take it is busy by its thresholds: 503, or 529 as NVIDIA Dynamo answers (docs/filters.md)"`
	Admission      AdmissionConfig `toml:"admission" was:"admission" help:"Caps on requests in flight."`
	Queue          QueueConfig     `toml:"queue" help:"Where requests wait while every node that could take them is full (docs/queue.md)."`
	Cascade        CascadeConfig   `toml:"cascade" help:"How several models answer one request in turn, the cheapest first. A chain of models is a setting of a model: cascade of [[model]], or cgn-ctl model set --cascade. docs/cascade.md says more."`
	Disagg         DisaggConfig    `toml:"disagg" help:"Prefill and decode of one request on two nodes."`
	Resume         ResumeConfig    `toml:"resume" help:"What becomes of a stream whose node is gone after the first byte."`
	Session        SessionConfig   `toml:"session" help:"How the requests of one session stay on one node. docs/sessions.md lists the headers with a session's id."`
}

// BackendConfig is one static engine, the table form of --backend.
type BackendConfig struct {
	URL           string `toml:"url" help:"http://host:port, https://host:port or unix:///path; a DNS name becomes one node for each of its addresses"`
	ID            string `toml:"id" help:"name of the node; empty: host:port of url"`
	Model         string `toml:"model" help:"name under which the engine serves its model; empty: the name that the engine lists"`
	Role          string `toml:"role" default:"both" help:"part of a request that the engine computes: prefill, the prompts of requests that other nodes answer; decode, answers; or both. Without a connector a prefill node gets no requests"`
	MaxConcurrent int    `toml:"max_concurrent" default:"0" help:"most requests that the engine gets at once; 0: no limit, and the router compares the nodes' requests in flight. When every node is at its limit, a request gets 503 with Retry-After, or waits in the queue if there is one ([router.queue]). A low number refuses requests of a burst (docs/policy.md, Slots and limits). Set the number that the engine answers well, not its largest batch (vLLM: --max-num-seqs)"`
	APIKeyFile    string `toml:"api_key_file" help:"file with the engine's API key, which the router sends as Authorization: Bearer"`
	CA            string `toml:"ca" help:"PEM file of the CAs that may sign the engine's https certificate; empty: the system's CAs"`
	Cert          string `toml:"cert" help:"client certificate that the router shows the engine; empty: none"`
	CertKey       string `toml:"cert_key" help:"key of cert"`
	KV            string `toml:"kv" help:"gRPC address of the cgn-kvcached on the engine's host, host:port (with the certificates of upstream_tls) or unix:///path; the blocks of that daemon then count in routing"`
	KVEvents      string `toml:"kv_events" help:"address where the engine publishes KV events (vLLM: --kv-events-config), tcp://host:port or ipc:///path; the router then knows the cached blocks of the engine's base model instead of predicting them. The [[model]] needs a tokenizer; with tokenizer = \"none\" only prompts given as token ids count. Only for engines without an agent, because an agent follows its engines itself"`
	KVReplay      string `toml:"kv_replay" help:"address where the engine repeats KV events that the router missed (vLLM: replay_endpoint); empty: a missed event makes the router forget all blocks of the engine"`
	Connector     string `toml:"connector" help:"how the engine hands the KV blocks of a prompt to another engine, or takes them (docs/engines.md): nixl, mooncake or kvcached (vllm), sglang, trtllm or trtllm-generation-first (TensorRT-LLM, by its schedule style). nixl and kvcached are tested with real engines; the others are experimental, held to documented bytes. Empty: for role prefill and decode nixl with vllm, sglang with sglang and trtllm with TensorRT-LLM; for role both none"`
	Bootstrap     string `toml:"bootstrap" help:"address of the engine's bootstrap server, which engines that decode must reach: host:port, or :port on the host of url. For the connectors sglang and mooncake of a node that prefills. Empty: port 8998 on the host of url"`

	MaxBatchedTokens int      `toml:"max_batched_tokens" default:"0" help:"tokens that the engine computes in one step, of all its requests together (vLLM: --max-num-batched-tokens, SGLang: --chunked-prefill-size); active_prefill_tokens_threshold_frac is a share of this number and has no effect without it (docs/filters.md); 0: unknown"`
	DataParallel     int      `toml:"data_parallel_size" default:"0" help:"data-parallel ranks of the engine (vLLM: --data-parallel-size, SGLang: --dp-size), 64 at most; the router then chooses a rank for each request and names it to the engine in x-data-parallel-rank (docs/engines.md). 0: as many as the engine's metrics name; 1: the engine chooses its rank itself"`
	Labels           []string `toml:"labels" help:"labels of the node, such as gpu=h100 or zone=a, which requests can require or prefer (docs/filters.md); in --backend, label= once for each label"`
	Experts          []string `toml:"experts" help:"experts of a mixture-of-experts model that the node hosts: numbers, ranges such as 0-127, and names, at most 64; requests ask for them with nvext.router.moe_query (docs/nvext.md); empty: none are stated. In --backend, expert= once for each entry"`
}

// ModelConfig has the settings of one model. Those that etcd can have too (cgn-ctl model set) count
// before etcd's.
type ModelConfig struct {
	Name              string              `toml:"name" help:"name of the model that this table is about"`
	Aliases           []string            `toml:"aliases" help:"further names under which clients may ask for the model; a name that is a model itself stays that model, and no two tables may have the same alias"`
	Base              string              `toml:"base" help:"the model is a LoRA adapter of this one, and an engine loads it when the first request comes: every node that serves the base gets requests for the adapter. The base must not be an adapter itself. Empty: the nodes whose engines list the model"`
	Pools             map[string][]string `toml:"pools" help:"ids of the model's nodes by role (prefill, decode, both). A role with a list has exactly these nodes, whatever role the nodes have themselves. A role without a list has the nodes of that role that are in no list"`
	Policy            string              `toml:"policy" help:"policy document (JSON) that holds for this model in place of the fleet's, as docs/policy.md describes it"`
	AdapterLoad       config.Duration     `toml:"adapter_load" default:"0s" help:"time that an engine takes to load this LoRA adapter, or any adapter of this model. From 1s on, a node whose engine has not loaded the adapter gets no request for it while a node that has it has room and no queue. 0s: unknown"`
	Cascade           []string            `toml:"cascade" help:"models that answer requests for this model in turn, the cheapest first; the model itself may be one of them, and need not be. An answer of which its model was not confident is dropped, and the next model is asked. Without router.cascade.enabled this has no effect"`
	CascadeThresholds []float64           `toml:"cascade_thresholds" help:"overrides router.cascade.confidence_threshold for this cascade: one value, or one for each model but the last"`
	CascadeDirect     string              `toml:"cascade_direct" help:"model of the cascade that answers requests whose answers cannot be judged; empty: the last one"`
	Tokenizer         string              `toml:"tokenizer" help:"directory with the engine's tokenizer.json, tokenizer_config.json and, if it has one, chat_template.jinja; the router then counts prompts in the engine's tokens, as KV events need it. The router follows byte-level BPE; it learns the tokens of other models, as with learn. learn: engines teach the router the tokens of chats and completions that repeat (docs/kvevents.md). none: KV events count only for prompts given as token ids. Empty: the router predicts cached blocks from the prompts' text"`
	ChatTemplate      string              `toml:"chat_template" help:"file with the engine's chat template, if the engine was started with another template than the model's own (vLLM: --chat-template)"`
	FirstByte         config.Duration     `toml:"first_byte" help:"overrides timeouts.first_byte"`
	Idle              config.Duration     `toml:"idle" help:"overrides timeouts.idle"`
	Total             config.Duration     `toml:"total" help:"overrides timeouts.total"`
	MaxQueue          int                 `toml:"max_queue" help:"overrides router.admission.max_queue and router.admission.max_queue_decode"`
	MaxQueueDecode    int                 `toml:"max_queue_decode" help:"overrides max_queue for the nodes of role decode"`
	MaxOutput         int                 `toml:"max_output" default:"0" help:"most tokens that the model's engines generate for one answer; a request with a limit of tokens reserves no more for an answer, and as many if it sets no maximum itself (docs/limits.md). 0: a request reserves the maximum that it sets, or limits.output_tokens"`
}

// PrefixConfig bounds the prefix index.
type PrefixConfig struct {
	MaxBlocks        int             `toml:"max_blocks" default:"1048576" help:"most blocks of 16 tokens in the prefix index; beyond this number the router prunes the index to prune_target_ratio of it"`
	PruneTargetRatio float64         `toml:"prune_target_ratio" default:"0.8" help:"share of max_blocks that is left after a pruning, 0.01 to 0.99; the blocks that were used last are left"`
	MaxHeld          int             `toml:"max_held" default:"4194304" help:"most blocks that the router remembers from the reports of cache daemons and engines, about 16 bytes each; further blocks do not count"`
	Memo             config.Size     `toml:"memo" default:"32MiB" help:"memory for the beginnings of earlier prompts, 1 KB for every 4 KiB of prompt; the router scans and hashes a remembered beginning only once, and remembers no prompt below 8 KiB; 0: none"`
	TTL              config.Duration `toml:"ttl" was:"prefix.lifetime" default:"120s" help:"how long the router believes that a predicted block is cached, until the cached-token counts of feedback tell more"`
	MaxExact         config.Size     `toml:"max_exact" default:"512KiB" help:"largest request body whose prompt is tokenised, for models with a tokenizer; the router predicts the blocks of a prompt of a larger body, or with a word of more than 4 KiB, from its text. Tokenising 1 KB takes 20 to 50 µs the first time"`
	ExactMemo        config.Size     `toml:"exact_memo" default:"64MiB" help:"memory for the tokens of earlier prompts, for models with a tokenizer, 2 KB for each KB of text; the next turn of a conversation is then tokenised only where it is new; the memory is allocated as it fills"`
	LearnedMemo      config.Size     `toml:"learned_memo" default:"64MiB" help:"memory for the tokens of the beginnings of chats and completions, for models whose tokens are learned, 176 bytes for each beginning and 8 for each 16 tokens that no shorter one has; the beginnings used least recently go; the memory is allocated as it fills; 0: no tokens are learned, and these prompts are predicted from their text"`
	Feedback         bool            `toml:"feedback" default:"true" help:"correct predictions by the cached-token counts that engines report; for this the router adds stream_options.include_usage to requests for streams"`
	KVEvents         bool            `toml:"kv_events" default:"true" help:"follow the KV events of engines: those of backends (kv_events), and those that agents and cache daemons report; false: the router predicts what engines have cached. Blocks in the RAM and on the SSD of cache daemons count in any case"`
}

// AdmissionConfig caps the requests in flight.
type AdmissionConfig struct {
	MaxQueue       int `toml:"max_queue" default:"4096" help:"most requests in flight of a model on its nodes of one role (both, decode); further requests get 503 with Retry-After, or wait in the queue if there is one"`
	MaxQueueDecode int `toml:"max_queue_decode" default:"0" help:"overrides max_queue for the nodes of role decode; 0: max_queue holds for them too"`
	Global         int `toml:"global" default:"16384" help:"most requests in flight of all models together; further requests get 429 with Retry-After"`
}

// SessionConfig sets how the requests of a session stay on one node.
type SessionConfig struct {
	Affinity string          `toml:"affinity" default:"soft" flag:"session-affinity" oneof:"off|soft|hard" help:"where a session's request goes; soft: to the node of the session's last answer, if the policy's mode counts it as equal or near to the best; hard: to that node while it takes requests and has room; off: the router remembers no node, and the session's id only decides among equal nodes"`
	TTL      config.Duration `toml:"ttl" default:"10m" help:"how long the router remembers a session's node after its last answer"`
	Max      int             `toml:"max" default:"65536" help:"most sessions whose node the router remembers, about 150 bytes each; beyond this number a new session replaces the oldest"`
}

// CascadeConfig sets how the answers of a cascade's models are judged.
type CascadeConfig struct {
	Enabled   bool            `toml:"enabled" default:"false" help:"answer requests for a model with a cascade by the models of its chain; false: such requests go to the model itself"`
	Threshold float64         `toml:"confidence_threshold" default:"-0.5" help:"log-probability, -100 to 0; an answer whose measure is below is dropped, and the next model of the chain is asked. cgn-ctl cascade fit finds the value for recorded answers"`
	Judge     string          `toml:"judge" default:"whole" oneof:"whole|stream" help:"whole: judge an answer at its end; the client gets nothing of it before. stream: judge a stream by its first tokens, and let it go on from then; an answer that is no stream is judged at its end"`
	Measure   string          `toml:"measure" default:"mean" oneof:"mean|quantile" help:"what is compared with confidence_threshold, of the log-probabilities of the tokens of the content: their mean, or a low quantile"`
	Quantile  float64         `toml:"quantile" default:"0.1" help:"the quantile of measure = quantile, 0 to 1; 0 is the least likely token"`
	Tokens    int             `toml:"tokens" default:"32" help:"tokens of the content by which judge = stream judges a stream, 1 to 1024; 16 to 64 are useful. A shorter answer is judged at its end"`
	Latency   config.Duration `toml:"latency" default:"2s" help:"longest time that judge = stream holds a stream back after its first event; then the client gets it without a judgement"`
	MaxHeld   config.Size     `toml:"max_held" default:"1MiB" help:"most bytes of one answer that wait for the judgement, 16KiB to 16MiB; a longer answer goes to the client without a judgement, and so does any answer while 256 MiB of all answers wait"`
}

// TimeoutConfig bounds every wait on a backend.
type TimeoutConfig struct {
	Dial          config.Duration `toml:"dial" default:"2s" help:"time to connect to a backend, TLS included"`
	FirstByte     config.Duration `toml:"first_byte" default:"300s" help:"hard bound on the wait for a stream's first event or a response's head"`
	FirstByteCold config.Duration `toml:"first_byte_cold" default:"60s" help:"wait for a stream's first event before the router asks another node, while the router does not know the model's speed"`
	PatienceFloor config.Duration `toml:"patience_floor" default:"1s" help:"shortest wait for a stream's first event before the router asks another node, however fast the model is"`
	StallFloor    config.Duration `toml:"stall_floor" default:"2s" help:"a node silent for less than this is not set aside, unless its streams are overdue"`
	Idle          config.Duration `toml:"idle" default:"120s" help:"longest gap between two reads of a response"`
	Total         config.Duration `toml:"total" default:"3600s" help:"longest duration of a whole response"`
}

// RetryConfig bounds the requests to further nodes.
type RetryConfig struct {
	MaxNodes int `toml:"max_nodes" default:"2" help:"most further nodes that the router sends a request to while the client has no byte yet; 1 after a 500, and after a reset that no other request on that node met"`
	Percent  int `toml:"percent" default:"20" help:"retries allowed, as a percentage of the requests of the last 10 s"`
	Floor    int `toml:"floor" default:"64" help:"retries always allowed in 10 s"`
}

// LimitConfig bounds the memory and connections that clients can take up.
type LimitConfig struct {
	MaxBody        config.Size     `toml:"max_body" default:"64MiB" help:"largest request body; a larger one gets 413"`
	MaxBodyTotal   config.Size     `toml:"max_body_total" default:"1GiB" help:"most bytes of all request bodies above 64 KiB together; each body counts in full from its request head on. Beyond this limit a body too slow for body_timeout is cut (408), or the new request gets 503 with Retry-After. On Linux a body takes memory only as it arrives, and at most 32 MiB stay allocated for later bodies. In addition, the text of a long prompt takes up to twice its size"`
	MaxHeader      config.Size     `toml:"max_header" default:"32KiB" help:"largest request head; a larger one gets 431"`
	MaxConnections int             `toml:"max_connections" default:"16384" help:"most open client connections; fewer if the limit of open files (ulimit -n) is too low for two files per connection"`
	MaxStreams     int             `toml:"max_streams" default:"8192" help:"most streamed responses at once; further ones get 429"`
	HeaderTimeout  config.Duration `toml:"header_timeout" default:"10s" help:"time a client has to send a request head"`
	BodyTimeout    config.Duration `toml:"body_timeout" default:"60s" help:"time a client has to send a request body"`
	KeepAlive      config.Duration `toml:"keep_alive" default:"120s" help:"how long an idle client connection is kept"`
	SlowReader     config.Duration `toml:"slow_reader" default:"30s" help:"time after which a client that reads nothing is cut. The kernel reports progress only once the client has read a third of the socket buffers (net.ipv4.tcp_wmem, net.ipv4.tcp_rmem), so a client that reads less than about 1 MiB in this time may be cut too"`
	Output         int             `toml:"output_tokens" default:"4096" help:"tokens that a request with a limit of tokens reserves for each answer, if it sets no maximum and its model has no max_output (docs/limits.md)"`
	ResponseIDs    int             `toml:"response_ids" default:"65536" help:"most stored responses whose node the router remembers; for any other stored response the router asks the nodes, or answers 404 if clients must say who they are"`
}

// TLSConfig sets the serving port's certificate, and the CA of allowed clients.
type TLSConfig struct {
	Cert     string `toml:"cert" help:"certificate of the serving port; empty: plain HTTP"`
	Key      string `toml:"key" help:"key of the certificate"`
	ClientCA string `toml:"client_ca" empty:"refused" help:"PEM file of the CA that clients' certificates must chain to; left out: clients show no certificate"`
	Optional bool   `toml:"client_optional" default:"false" help:"let in clients without a certificate too; they need an API key or a token"`
}

// UpstreamTLS sets how the router checks agents, and its own certificate for them.
type UpstreamTLS struct {
	CA   string `toml:"ca" help:"PEM file of the CA that signs the agents' certificates, which must have the role agent; empty: the system's CAs, and any role"`
	Cert string `toml:"cert" help:"the router's client certificate"`
	Key  string `toml:"key" help:"key of the client certificate"`
}

// LogConfig sets the logs and their files.
type LogConfig struct {
	Level       string `toml:"level" default:"info" flag:"log-level" oneof:"debug|info|warn|error" help:"least severity that is logged"`
	Format      string `toml:"format" default:"text" flag:"log-format" oneof:"text|json" help:"how log lines are written"`
	Access      string `toml:"access" default:"" flag:"access-log" help:"file of the access log; -: standard output; empty: no access log"`
	AccessQueue int    `toml:"access_queue" default:"8192" help:"most lines of the access log that wait to be written; further lines are dropped and counted"`
}

// TakeoverConfig sets how a router replaces a running one.
type TakeoverConfig struct {
	Start   bool            `toml:"start" default:"false" flag:"takeover" help:"replace the running router of the same configuration once this router is ready; start normally if none runs"`
	Socket  string          `toml:"socket" default:"" help:"Unix socket where a new router finds the running router, for processes of the same user only; empty: cgn-router-ADDRESS.sock (ADDRESS is router.listen) in the first directory of these that applies: $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR/cgn-router, /run/cgn-router for root, cgn-router-UID in the temporary directory; no socket if router.listen has port 0; off: no socket"`
	Timeout config.Duration `toml:"timeout" default:"60s" help:"time that the new router has to become ready; after this time it gives up and the running router goes on"`

	byDefault bool // Socket is not configured
}

// Validate checks the values beyond their types. Validate names each problem with its field and the
// fix.
func (c *Config) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
	if _, err := policy.ParseMode(c.Router.Mode); c.Router.Mode != "" && err != nil {
		bad("router.mode", "%q is not a mode; use one of %s", c.Router.Mode, policy.ModesInstead(c.Router.Mode))
	}
	if s := c.Router.OverloadStatus; s != 503 && s != 529 {
		bad("router.overload_status", "%d is none of the statuses of an overload; use 503 or 529", s)
	}
	if len(c.Backends)+len(c.Router.Backends) == 0 && len(c.Etcd.Endpoints) == 0 {
		errs = append(errs, config.Missing{Err: errors.New("backend: no engine to route to; " +
			"give --backend URL, a [[backend]] table or etcd.endpoints (--etcd)")})
	}
	c.validateBackends(bad)
	c.validateTLS(bad)
	c.validateAuth(bad)
	c.validateLimits(bad)
	c.RateLimit.validate(bad)
	c.Usage.validate(bad)
	c.validateListeners(bad)
	c.validateOverlap(bad)
	c.validateFiles(bad)
	c.validateTakeover(bad)
	c.Traces.validate(bad)
	c.validateKernelEvents(bad)
	c.validateNumbers(bad)
	c.Router.Disagg.validate(bad)
	c.Router.Resume.validate(bad)
	c.validateDurations(bad)
	c.validateModels(bad)
	c.validateCascade(bad)
	c.Router.Queue.validate(bad)
	return errors.Join(errs...)
}

// problem reports an unusable field and the fix.
type problem func(field, format string, args ...any)

func (c *Config) validateBackends(bad problem) {
	var all []fleet.Backend
	for i, text := range c.Router.Backends {
		b, err := fleet.ParseBackend(text)
		if err != nil {
			bad(fmt.Sprintf("router.backends[%d]", i), "%v", err)
			continue
		}
		all = append(all, b)
	}
	for i, table := range c.Backends {
		b := table.backend()
		if err := b.Check(); err != nil {
			bad(fmt.Sprintf("backend[%d]", i), "%v", err)
			continue
		}
		all = append(all, b)
	}
	if err := fleet.CheckBackends(all); err != nil {
		bad("backend", "%v", err)
	}
	c.validateEvents(all, bad)
}

func (c *Config) validateTLS(bad problem) {
	for _, t := range []struct{ section, ca, caKey, cert, key string }{
		{"tls", c.TLS.ClientCA, "client_ca", c.TLS.Cert, c.TLS.Key},
		{"upstream_tls", "", "", c.Upstream.Cert, c.Upstream.Key},
	} {
		if (t.cert == "") != (t.key == "") {
			bad(t.section+".cert", "goes together with %s.key; give both or neither", t.section)
		}
		if t.ca != "" && t.cert == "" {
			bad(t.section+"."+t.caKey, "needs %s.cert and %s.key", t.section, t.section)
		}
	}
	if c.TLS.Optional && (c.TLS.ClientCA == "" || !c.Auth.on()) {
		bad("tls.client_optional", "needs tls.client_ca, and API keys or tokens (auth.keys_file, auth.oidc) for clients "+
			"without a certificate")
	}
	if c.Upstream.Cert != "" && c.Upstream.CA == "" {
		bad("upstream_tls.ca", "empty; upstream_tls.cert is shown to agents of one CA only, so name it")
	}
}

func (c *Config) validateListeners(bad problem) {
	for _, l := range []struct {
		field, address, fix string
		allowed             bool
	}{
		{"router.listen", c.Router.Listen, "set tls.client_ca, or API keys (auth.keys_file) or auth.oidc and tls.cert, or " +
			"insecure_listen = true (--insecure-listen)",
			c.TLS.ClientCA != "" || c.Auth.on() && c.TLS.Cert != "" || c.Router.InsecureListen},
		{"router.admin", c.Router.Admin, "listen on loopback, or set admin_tls.client_ca, or API keys " +
			"(auth.keys_file) and admin_tls.cert, or insecure_admin = true (--insecure-admin)",
			c.AdminTLS.Certified() || c.Auth.on() && c.AdminTLS.Cert != "" || c.Router.InsecureAdmin},
	} {
		if err := listen.Check(l.address); err != nil {
			bad(l.field, "%v", err)
		} else if !l.allowed && !listen.Loopback(l.address) {
			bad(l.field, "%q is reachable from other hosts without authentication; "+
				"%s if something in front of it authenticates", l.address, l.fix)
		}
	}
}

// validateOverlap refuses two equal addresses of the router, and the router itself as a backend.
func (c *Config) validateOverlap(bad problem) {
	if listen.Overlap(c.Router.Listen, c.Router.Admin) {
		bad("router.admin", "%q cannot be listened on next to router.listen, %q; give it another port",
			c.Router.Admin, c.Router.Listen)
	}
	urls := map[string]string{}
	for i, text := range c.Router.Backends {
		url, _, _ := strings.Cut(text, ",")
		urls[fmt.Sprintf("router.backends[%d]", i)] = strings.TrimSpace(url)
	}
	for i, b := range c.Backends {
		urls[fmt.Sprintf("backend[%d].url", i)] = b.URL
	}
	for _, field := range slices.Sorted(maps.Keys(urls)) {
		a, err := address.Parse(urls[field])
		if err != nil {
			continue // validateBackends reports it
		}
		at := a.Addr
		if a.Network == "unix" {
			at = "unix://" + at
		}
		if listen.Overlap(at, c.Router.Listen) || listen.Overlap(at, c.Router.Admin) {
			bad(field, "%s is where the router itself listens; give the engine's address", at)
		}
	}
}

func (c *Config) validateTakeover(bad problem) {
	at := c.Takeover.Socket
	if at != "" && at != "off" && !filepath.IsAbs(at) {
		bad("takeover.socket", "%q is no absolute path; give one, off, or leave it out for the default", at)
	}
	for _, other := range []string{c.Router.Listen, c.Router.Admin} {
		if listen.Overlap("unix://"+at, other) {
			bad("takeover.socket", "%q is where the router listens; give another path", at)
		}
	}
}

func (c *Config) validateKernelEvents(bad problem) {
	switch at := c.Router.KernelEvents; {
	case at == "":
	case !filepath.IsAbs(at):
		bad("router.kernel_events",
			"%q is no absolute path; give that of the agent's telemetry.events, or leave it out", at)
	case !c.Router.WatchNodes:
		bad("router.kernel_events", "an event makes the router look at its connections, "+
			"which router.watch_nodes = false forbids; leave one of them out")
	}
}

func (c *Config) validateNumbers(bad problem) {
	a, p, r, l := &c.Router.Admission, &c.Prefix, &c.Retry, &c.Limits
	for _, n := range []struct {
		field  string
		v, low int
	}{
		{"router.warm_connections", c.Router.Warm, 0},
		{"prefix.max_blocks", p.MaxBlocks, 1024}, {"prefix.max_held", p.MaxHeld, 1024},
		{"prefix.memo", int(p.Memo), 0}, {"prefix.exact_memo", int(p.ExactMemo), 0},
		{"prefix.learned_memo", int(p.LearnedMemo), 0},
		{"router.admission.max_queue", a.MaxQueue, 1}, {"router.admission.max_queue_decode", a.MaxQueueDecode, 0},
		{"router.admission.global", a.Global, 1},
		{"retry.max_nodes", r.MaxNodes, 0}, {"retry.percent", r.Percent, 0}, {"retry.floor", r.Floor, 0},
		{"limits.max_connections", l.MaxConnections, 1}, {"limits.max_streams", l.MaxStreams, 1},
		{"limits.response_ids", l.ResponseIDs, 1}, {"router.session.max", c.Router.Session.Max, 1}, {"log.access_queue", c.Log.AccessQueue, 1},
	} {
		if n.v < n.low {
			bad(n.field, "%d is too small; use %d or more", n.v, n.low)
		}
	}
	for _, n := range []struct {
		field  string
		v, low config.Size
	}{
		{"prefix.max_exact", p.MaxExact, 1024}, {"limits.max_body", l.MaxBody, 1024},
		{"limits.max_header", l.MaxHeader, 4096},
	} {
		if n.v < n.low {
			bad(n.field, "%s is too small; use %s or more, and write the unit, as in 64MiB", n.v, n.low)
		}
	}
	if v := p.PruneTargetRatio; !(v >= 0.01 && v <= 0.99) {
		bad("prefix.prune_target_ratio", "%v is not in 0.01..0.99; leave it out for 0.8", v)
	}
	if l.MaxBody > l.MaxBodyTotal {
		bad("limits.max_body", "%s is more than limits.max_body_total, %s; use less, or raise that",
			l.MaxBody, l.MaxBodyTotal)
	}
}

// validateDurations refuses timeouts that end before they begin.
func (c *Config) validateDurations(bad problem) {
	t, l := &c.Timeouts, &c.Limits
	for _, d := range []struct {
		field string
		value config.Duration
	}{
		{"prefix.ttl", c.Prefix.TTL}, {"router.session.ttl", c.Router.Session.TTL},
		{"timeouts.dial", t.Dial}, {"timeouts.first_byte", t.FirstByte}, {"timeouts.first_byte_cold", t.FirstByteCold},
		{"timeouts.patience_floor", t.PatienceFloor}, {"timeouts.stall_floor", t.StallFloor},
		{"timeouts.idle", t.Idle}, {"timeouts.total", t.Total},
		{"limits.header_timeout", l.HeaderTimeout}, {"limits.body_timeout", l.BodyTimeout},
		{"takeover.timeout", c.Takeover.Timeout},
		{"limits.keep_alive", l.KeepAlive}, {"limits.slow_reader", l.SlowReader},
	} {
		if d.value.Std() < time.Millisecond {
			bad(d.field, "%s is too short; use 1ms or more, or leave it out for the default", d.value)
		}
	}
	const usual = time.Second // the default of the floor, which gives way to a shorter first_byte
	if t.PatienceFloor > t.FirstByte && t.PatienceFloor.Std() != usual {
		bad("timeouts.patience_floor", "%s is more than timeouts.first_byte, %s; use less, or raise that",
			t.PatienceFloor, t.FirstByte)
	}
}

func (c *Config) validateCascade(bad problem) {
	o := &c.Router.Cascade
	if v := o.Threshold; !(v >= cluster.LeastConfidence && v <= 0) {
		bad("router.cascade.confidence_threshold", "%v is not in %d..0; it is a log-probability, such as -0.5", v,
			cluster.LeastConfidence)
	}
	if v := o.Quantile; !(v >= 0 && v <= 1) {
		bad("router.cascade.quantile", "%v is not in 0..1; leave it out for 0.1", v)
	}
	if o.Tokens < 1 || o.Tokens > 1024 {
		bad("router.cascade.tokens", "%d is not in 1..1024; leave it out for 32", o.Tokens)
	}
	if o.Latency.Std() < time.Millisecond {
		bad("router.cascade.latency", "%s is too short; use 1ms or more, or leave it out for 2s", o.Latency)
	}
	if o.MaxHeld < 16<<10 || o.MaxHeld > 16<<20 {
		bad("router.cascade.max_held", "%s is not in 16KiB..16MiB; leave it out for 1MiB", o.MaxHeld)
	}
}

func (c *Config) validateModels(bad problem) {
	seen := map[string]bool{}
	for i, m := range c.Models {
		field := fmt.Sprintf("model[%d].name", i)
		if m.Name == "" {
			bad(field, "empty; name the served model")
		} else if seen[m.Name] {
			bad(field, "%q is configured twice", m.Name)
		}
		seen[m.Name] = true
		if m.ChatTemplate != "" && !m.settings().Files() {
			bad(fmt.Sprintf("model[%d].chat_template", i), "needs model[%d].tokenizer; "+
				"name the directory with the model's tokenizer.json, or leave it out", i)
		} else if err := m.settings().Check(m.Name); err != nil {
			bad(fmt.Sprintf("model[%d]", i), "%s: %v", m.Name, err)
		}
		if m.Policy != "" {
			if _, err := policy.Parse([]byte(m.Policy)); err != nil {
				bad(fmt.Sprintf("model[%d].policy", i), "%v", err)
			}
		}
		for key, v := range map[string]int{"max_queue": m.MaxQueue, "max_queue_decode": m.MaxQueueDecode} {
			if v < 0 {
				bad(fmt.Sprintf("model[%d].%s", i, key), "%d is negative; leave it out for router.admission.%s", v, key)
			}
		}
	}
	c.validateNames(bad)
}

// validateNames checks the settings of several models together: each alias has one model, no base
// is an adapter itself, no cascade names another one, and none names a model twice.
func (c *Config) validateNames(bad problem) {
	owner, named := map[string]string{}, map[string]*ModelConfig{}
	for i := range c.Models {
		m := &c.Models[i]
		for _, alias := range m.Aliases {
			if other, taken := owner[alias]; taken {
				bad(fmt.Sprintf("model[%d].aliases", i), "%s: %q is an alias of %s already; leave it out of one",
					m.Name, alias, other)
				continue
			}
			owner[alias], named[alias] = m.Name, m
		}
	}
	for i := range c.Models { // a name comes before an alias
		named[c.Models[i].Name] = &c.Models[i]
	}
	for i, m := range c.Models {
		base := named[m.Base]
		if m.Base != "" && base != nil && base.Base != "" && m.Base != m.Name {
			bad(fmt.Sprintf("model[%d].base", i), "%s: %s is an adapter itself, of %s; name the model that the engines serve",
				m.Name, m.Base, base.Base)
		}
		for _, name := range m.Cascade {
			if step := named[name]; step != nil && step.Name != name && slices.Contains(m.Cascade, step.Name) {
				bad(fmt.Sprintf("model[%d].cascade", i), "%s: %s is an alias of %s, so the chain names that model twice; "+
					"leave one out", m.Name, name, step.Name)
			}
			if step := named[name]; step != nil && step.Name != m.Name && len(step.Cascade) > 0 {
				bad(fmt.Sprintf("model[%d].cascade", i), "%s: %s has a cascade itself; name models that have none",
					m.Name, name)
			}
		}
	}
}
