// Package metrics holds the router's counters. The request path's counters are bound to their
// labels once per model or node, so counting is an atomic add.
package metrics

import (
	"log/slog"
	"math"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/metric"
)

// Router holds every metric of one router process.
type Router struct {
	Set *metric.Set

	Requests       *Requests
	Tenants        *Tenants
	Rejected       *prometheus.CounterVec // reason
	Limited        *prometheus.CounterVec // limit, of
	ClientCut      *prometheus.CounterVec // reason
	StreamErrors   *prometheus.CounterVec // reason
	Retries        *prometheus.CounterVec // reason
	RetriesRefused prometheus.Counter
	LastResort     prometheus.Counter
	Filtered       *prometheus.CounterVec // reason
	Handovers      *prometheus.CounterVec // result
	Resumed        *prometheus.CounterVec // result, by
	Handover       prometheus.Observer
	AdapterLoads   prometheus.Counter
	UpstreamErrors *prometheus.CounterVec // node, kind
	PolicyReloads  *prometheus.CounterVec // result
	Lookups        *prometheus.CounterVec // result
	SessionAnswers *prometheus.CounterVec // result
	AccessDropped  prometheus.Counter
	Audit          audit.Metrics
	SpansDropped   *prometheus.CounterVec // reason
	Panics         prometheus.Counter
	Takeovers      *prometheus.CounterVec // outcome
	Pick           prometheus.Observer
	Passed         prometheus.Counter
	RelayLag       prometheus.Observer
	SignalLag      prometheus.Observer
	EventLag       prometheus.Observer

	Tokenised               *prometheus.CounterVec // result
	TokenBytes, TokensKnown prometheus.Counter
	TokenSeconds            prometheus.Observer
	Lessons                 *prometheus.CounterVec // result

	Cascade Cascade
	Queue   Queue

	bound
}

// bound are the metrics with a label of one model or node.
type bound struct {
	seconds, ttft, itl, overlap    *prometheus.HistogramVec // model
	maxGap                         *prometheus.HistogramVec // model
	ttftError, ttftErrorRatio      *prometheus.HistogramVec // model
	lengthError                    *prometheus.HistogramVec // model
	prompt, completion, cached     *prometheus.CounterVec   // model
	believed, found                *prometheus.CounterVec   // model, tier
	prediction                     *prometheus.HistogramVec // node
	prefill                        *prometheus.HistogramVec // model
	setAside, unreported, rejected *prometheus.CounterVec   // node
}

// Model holds the bound counters of one served model.
type Model struct {
	Seconds, TTFT, ITL, Overlap prometheus.Observer
	MaxGap, Prefill             prometheus.Observer
	TTFTError, TTFTErrorRatio   prometheus.Observer
	LengthError                 prometheus.Observer
	Prompt, Completion, Cached  prometheus.Counter

	tiers tiers
}

// Node holds the bound counters of one node.
type Node struct {
	Prediction           prometheus.Observer
	SetAside             prometheus.Counter
	Unreported           prometheus.Counter
	RejectsStreamOptions prometheus.Counter
}

var (
	latencyBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	gapBuckets     = []float64{.0005, .001, .0025, .005, .01, .02, .03, .05, .075, .1, .25, .5, 1, 5}
	stallBuckets   = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2, 3, 5, 10, 30, 60, 120, 300}
	pickBuckets    = []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 1e-2}
	eventBuckets   = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1}
	signalBuckets  = []float64{.005, .01, .02, .03, .04, .05, .06, .07, .08, .09, .1, .125, .15, .2, .3, .5, 1, 2, 5}
	lagBuckets     = []float64{1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, .1}
	ratioBuckets   = []float64{0, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1}
	errorBuckets   = []float64{-1, -.5, -.25, -.1, -.05, -.02, 0, .02, .05, .1, .25, .5, 1}

	secondsOffBuckets = []float64{
		-30, -10, -3, -1, -.5, -.25, -.1, -.05, -.02, -.01, 0, .01, .02, .05, .1, .25, .5, 1, 3, 10, 30,
	}
	ratioOffBuckets  = []float64{.02, .05, .1, .15, .2, .3, .4, .5, .75, 1, 2, 5}
	tokensOffBuckets = []float64{
		-4096, -2048, -1024, -512, -256, -128, -64, -32, -16, 0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096,
	}
)

// New creates the router's metrics.
func New() *Router {
	s := metric.NewSet()
	return &Router{
		Set: s, Lessons: newLessons(s), bound: newBound(s), Cascade: newCascade(s), Queue: newQueue(s),
		SpansDropped: newSpansDropped(s),
		Requests:     newRequests(s), Tenants: newTenants(s),
		Rejected: s.Counter("cgn_router_rejected_total", "Requests that the router refused itself, by reason.",
			"reason"),
		ClientCut: s.Counter("cgn_router_client_cut_total",
			"Client connections that ended early, by reason: slow_request, slow_reader, left, too_many.", "reason"),
		StreamErrors: s.Counter("cgn_router_stream_errors_total",
			"Streams that ended with an error event, by reason.", "reason"),
		Retries: s.Counter("cgn_router_retries_total",
			"Requests sent to a further node, by what the last one did.", "reason"),
		RetriesRefused: s.Counter("cgn_router_retries_refused_total",
			"Retries that the budget did not allow.").WithLabelValues(),
		Audit:     audit.NewMetrics(s, "cgn_router"),
		Handovers: newHandovers(s), Resumed: newResumed(s), Limited: newLimited(s),
		Handover: s.Histogram("cgn_router_handover_seconds", "Time from the answer of the node that has computed a "+
			"prompt until the answering node has its request.", pickBuckets).WithLabelValues(),
		AdapterLoads: s.Counter("cgn_router_adapter_loads_total", "Requests for a LoRA adapter that were sent to a "+
			"node whose engine had to load it first, as far as that is known.").WithLabelValues(),
		LastResort: s.Counter("cgn_router_last_resort_total", "Requests sent to a node that is out of service "+
			"for server errors, or only returning, because no other node could take them.").WithLabelValues(),
		Filtered: s.Counter("cgn_router_filtered_total", "Picks that left a node out, by reason. A pick counts once "+
			"for each reason, whatever the number of nodes.", "reason"),
		UpstreamErrors: s.Counter("cgn_router_upstream_errors_total", "Attempts that failed, by node and kind; cut "+
			"and idle are failures after the answer had begun, all others are failures before the client had a byte.",
			"node", "kind"),
		PolicyReloads: s.Counter("cgn_router_policy_reloads_total", "Policy documents seen: applied or refused.",
			"result"),
		Lookups: s.Counter("cgn_router_response_lookups_total", "Searches on the nodes for a stored response "+
			"that this router does not know: found, missing, unanswered (some node did not answer), refused (too "+
			"many at once).", "result"),
		SessionAnswers: s.Counter("cgn_router_session_answers_total", "Answers begun for requests of a session: the "+
			"session was not known (new), stays at its node (kept) or was at another node (moved).", "result"),
		AccessDropped: s.Counter("cgn_router_access_log_dropped_total", "Access log lines lost: dropped because "+
			"the writer was behind, or by a write that failed.").WithLabelValues(),
		Takeovers: s.Counter("cgn_router_takeovers_total", "Attempts to replace a running router: this process took "+
			"over (taken), or another process asked this one and was refused (refused), or ended before it was ready "+
			"(abandoned).", "outcome"),
		Panics: s.Counter("cgn_router_panics_total",
			"Requests whose handling failed because of a bug.").WithLabelValues(),
		Pick: s.Histogram("cgn_router_pick_seconds", "Time from a request read to its node chosen.",
			pickBuckets).WithLabelValues(),
		Passed: s.Counter("cgn_router_prompt_passed_bytes_total",
			"Bytes of prompts that were neither scanned nor hashed because an earlier prompt began "+
				"with them.").WithLabelValues(),
		RelayLag: s.Histogram("cgn_router_relay_lag_seconds", "Time of one turn of a relay loop, which is the "+
			"longest that a piece of a stream waits for the loop.", lagBuckets).WithLabelValues(),
		Tokenised: s.Counter("cgn_router_tokenised_total",
			"Prompts for models with a tokenizer: exact, or predicted from their text because of their size or a "+
				"word of more than 4 KiB (large), images and the like (media), content in a form that engines treat "+
				"differently (form), an option with an unknown effect (option), or a chat template that refused them "+
				"or cannot be followed (template).", "result"),
		TokenBytes: s.Counter("cgn_router_tokenised_bytes_total",
			"Bytes of prompts that were tokenised, for models with a tokenizer.").WithLabelValues(),
		TokensKnown: s.Counter("cgn_router_tokenised_known_bytes_total",
			"Bytes of prompts whose tokens were remembered, for models with a tokenizer.").WithLabelValues(),
		TokenSeconds: s.Histogram("cgn_router_tokenise_seconds", "Time to make the tokens of a prompt, its chat "+
			"template included; part of cgn_router_pick_seconds.", pickBuckets).WithLabelValues(),
		SignalLag: s.Histogram("cgn_router_signal_lag_seconds",
			"Upper bound on the age of a change of a node's load when it arrives here: the time since the agent's "+
				"last look without the change, with the whole way there and back.", signalBuckets).WithLabelValues(),
		EventLag: s.Histogram("cgn_router_kernel_event_lag_seconds",
			"Time from a retransmission timeout, reset or failed connection in the kernel to this router's reaction.",
			eventBuckets).WithLabelValues(),
	}
}

func newLimited(s *metric.Set) *prometheus.CounterVec {
	return s.Counter("cgn_router_limited_total", "Requests refused with 429 by a limit (docs/limits.md), by the name of "+
		"the limit and by whose it is: key, tenant, model, or tenant_model, a tenant's for one model.", "limit", "of")
}

func newLessons(s *metric.Set) *prometheus.CounterVec {
	return s.Counter("cgn_router_learned_lessons_total", "Answers after which an engine was asked for the tokens of "+
		"their prompts, for models whose tokens are learned: taught, failed, or dropped because 8 others were under "+
		"way or the prompts kept for this took 64 MiB.", "result")
}

func newHandovers(s *metric.Set) *prometheus.CounterVec {
	return s.Counter("cgn_router_handovers_total", "Requests for models with nodes that compute prompts for others, "+
		"by what became of the prompt: split (another node computed it), or computed by the answering node because it "+
		"is short, the request's form demands one node (form), most of it is cached there, that costs less (sooner), "+
		"no other node pairs with it (unpaired), the other node took or would take too long for the client's deadline "+
		"(late), the answer is one token (over), or the hand-over failed: no other node could take it (no_node), the "+
		"other node refused, gave no answer (broken) or none of use (garbled), or its blocks could not be read "+
		"(unread).", "result")
}

func newSpansDropped(s *metric.Set) *prometheus.CounterVec {
	return s.Counter("cgn_router_spans_dropped_total", "Spans of traces that did not reach the collector: too many "+
		"waited (queue), the collector did not take their batch, or not all of it (collector), or the router stopped "+
		"first (shutdown).", "reason")
}

func newResumed(s *metric.Set) *prometheus.CounterVec {
	return s.Counter("cgn_router_resumed_total", "Streams that a node broke off, by what became of them and by what: "+
		"complete (another node went on by token ids (ids) or text, or began anew (start), or only the closing event "+
		"was missing (end)), failed (another node was asked, and the stream ended with an error), or impossible, by "+
		"reason. Reasons in the stream: tool, reasoning, unknown (no token ids), unread (chunks of another form), memory "+
		"(router.resume.memory), refused (the engine's own error), seam (the text of the last tokens is unknown), nodes "+
		"(retry.max_nodes), crowded (too many other streams began to go on at once) or late (the client's deadline has "+
		"passed, or no node was expected to go on before it). Reasons in the request: off "+
		"(router.resume.mode, or retry.max_nodes is 0), http10, pinned, api, escape (in the name of a member of the "+
		"body), or the name of the member that rules it out, such as n or response_format.",
		"result", "by")
}

func newBound(s *metric.Set) bound {
	return bound{
		seconds: s.Histogram("cgn_router_request_seconds", "Time from request read to response written.",
			latencyBuckets, "model"),
		ttft: s.Histogram("cgn_router_ttft_seconds",
			"Time from request read to the first body event of a stream.", latencyBuckets, "model"),
		itl: s.Histogram("cgn_router_itl_seconds",
			"Mean time between the body events of a stream, one observation per stream.", gapBuckets, "model"),
		maxGap: s.Histogram("cgn_router_itl_max_seconds", "Longest time between two body events of a stream, one "+
			"observation per stream; it includes waits for a client that does not read.", stallBuckets, "model"),
		ttftError: s.Histogram("cgn_router_expected_ttft_error_seconds", "Expected minus real time from the sending "+
			"of a request to its first token; streams in mode predicted, except those of /v1/responses.",
			secondsOffBuckets, "model"),
		ttftErrorRatio: s.Histogram("cgn_router_expected_ttft_error_ratio", "Difference between expected and real "+
			"time from the sending of a request to its first token, as a share of the real time; streams in "+
			"mode predicted, except those of /v1/responses.", ratioOffBuckets, "model"),
		prefill: s.Histogram("cgn_router_prefill_seconds", "Time of a request to a node that computes the prompt for "+
			"another node.", latencyBuckets, "model"),
		lengthError: s.Histogram("cgn_router_expected_length_error_tokens", "Expected minus real completion tokens of "+
			"a complete answer, as the engine reports them; mode predicted only.", tokensOffBuckets, "model"),
		overlap: s.Histogram("cgn_router_overlap_ratio",
			"Share of the prompt's blocks believed cached on the chosen node.", ratioBuckets, "model"),
		prompt: s.Counter("cgn_router_prompt_tokens_total", "Prompt tokens, as engines report them.", "model"),
		completion: s.Counter("cgn_router_completion_tokens_total", "Completion tokens, as engines report them.",
			"model"),
		cached: s.Counter("cgn_router_cached_tokens_total",
			"Prompt tokens found in an engine's cache, as engines report them.", "model"),
		believed: newBelieved(s), found: newFound(s),
		prediction: s.Histogram("cgn_router_prediction_error_ratio",
			"Cached share of a prompt as the router believed it, minus the share that the engine reports.", errorBuckets,
			"node"),
		setAside: s.Counter("cgn_router_set_aside_total",
			"Times a node was set aside, and got no new requests, because it made no progress.", "node"),
		unreported: s.Counter("cgn_router_cached_unreported_total",
			"Answers whose usage has no cached-token count.", "node"),
		rejected: s.Counter("cgn_router_stream_options_rejected_total",
			"Requests resent without stream_options because the engine refuses them.", "node"),
	}
}

// Model binds the counters of a served model.
func (r *Router) Model(name string) Model {
	return Model{
		Seconds: r.seconds.WithLabelValues(name), TTFT: r.ttft.WithLabelValues(name),
		ITL: r.itl.WithLabelValues(name), MaxGap: r.maxGap.WithLabelValues(name),
		TTFTError: r.ttftError.WithLabelValues(name), TTFTErrorRatio: r.ttftErrorRatio.WithLabelValues(name),
		LengthError: r.lengthError.WithLabelValues(name), Prefill: r.prefill.WithLabelValues(name),
		Overlap: r.overlap.WithLabelValues(name),
		Prompt:  r.prompt.WithLabelValues(name), Completion: r.completion.WithLabelValues(name),
		Cached: r.cached.WithLabelValues(name), tiers: r.tiers(name),
	}
}

// FirstCame counts the error of an expected time to a first token. expected and real are seconds.
func (m *Model) FirstCame(expected, real float64) {
	if real <= 0 {
		return
	}
	m.TTFTError.Observe(expected - real)
	m.TTFTErrorRatio.Observe(math.Abs(expected-real) / real)
}

// Node binds the counters of a node.
func (r *Router) Node(id string) Node {
	return Node{
		Prediction: r.prediction.WithLabelValues(id), SetAside: r.setAside.WithLabelValues(id),
		Unreported: r.unreported.WithLabelValues(id), RejectsStreamOptions: r.rejected.WithLabelValues(id),
	}
}

// ForgetModel removes the series of a departed model.
func (r *Router) ForgetModel(name string) {
	r.Requests.forget(name)
	r.Cascade.forget(name)
	match := prometheus.Labels{"model": name}
	for _, v := range []*prometheus.HistogramVec{
		r.seconds, r.ttft, r.itl, r.maxGap, r.overlap, r.ttftError, r.ttftErrorRatio, r.lengthError,
		r.prefill,
	} {
		v.DeletePartialMatch(match)
	}
	for _, v := range []*prometheus.CounterVec{r.prompt, r.completion, r.cached, r.believed, r.found} {
		v.DeletePartialMatch(match)
	}
}

// ForgetNode removes the series of a departed node.
func (r *Router) ForgetNode(id string) {
	match := prometheus.Labels{"node": id}
	r.prediction.DeletePartialMatch(match)
	r.UpstreamErrors.DeletePartialMatch(match)
	for _, v := range []*prometheus.CounterVec{r.setAside, r.unreported, r.rejected} {
		v.DeletePartialMatch(match)
	}
}

// Bug counts and logs p, the value of a recovered panic. what names the operation.
func (r *Router) Bug(log *slog.Logger, what string, p any) {
	log.Error(what+" failed, this is a bug", "panic", p, "stack", string(debug.Stack()))
	r.Panics.Inc()
}
