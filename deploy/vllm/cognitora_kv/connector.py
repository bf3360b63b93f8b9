"""KVCachedConnector: vLLM (V1) keeps its KV blocks in cgn-kvcached, and loads what any engine of
the fleet has kept.

One object of the daemon holds one engine block of one rank, with all layers. Its address is the
digest of the block's last 16 tokens, and its namespace is everything else that its bytes depend on.
A router that knows the tokens of a prompt knows the same digests, so the blocks count in routing.

A block that cannot be loaded is computed. A daemon that is gone costs a log line and no request.

Two engines hand a prompt over by it. The one that computes the prompt says how many of its tokens
it stores, and the other one waits until it can find their blocks, for a bounded time.
"""
from dataclasses import dataclass, field
import secrets
import threading
import time

import vllm
from vllm.config import get_current_vllm_config_or_none
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole, KVConnectorWorkerMetadata)
from vllm.logger import init_logger
from vllm.platforms import current_platform

from . import namespace as namespaces
from .adapters import Adapters
from .copies import Cache, Load, Loader, Save, Saver
from .digests import TOKENS, Chain, seed
from .doubts import Doubts
from .handover import Wait, asks, in_parts, says, wanted
from .lease import BATCH, Lease
from .reads import Reads
from .resp import Resp

logger = init_logger("vllm." + __name__)

SOCKET = "/run/cognitora/kv-lease.sock"
LOOKUP = 1.0  # seconds for a lookup, during which the engine plans no step
TRANSFER = 10.0  # seconds for an answer about blocks to load or store
AGAIN = 1.0  # seconds after a failure until the daemon is asked again
KNOWN = {"socket", "resp", "revision", "staging", "node"}


class Settings:
    """kv_connector_extra_config, and what the model and the engine say."""

    def __init__(self, config, kv_cache_config):
        extra = config.kv_transfer_config.kv_connector_extra_config
        wrong = sorted(set(extra) - KNOWN)
        if wrong:
            raise ValueError(f"kv_connector_extra_config: unknown {', '.join(wrong)}; known: {', '.join(sorted(KNOWN))}")
        self.socket, self.resp = extra.get("socket", SOCKET), extra.get("resp", "")
        self.node = str(extra.get("node", ""))
        self.staging = int(extra.get("staging", 256 << 20))
        self.check(config, kv_cache_config)
        model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
        group = kv_cache_config.kv_cache_groups[0]
        self.model, self.blocks = str(model.served_model_name), kv_cache_config.num_blocks
        self.layers, self.block_tokens = list(group.layer_names), group.kv_cache_spec.block_size
        self.tp, self.pp = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        self.dtype = str(model.dtype).removeprefix("torch.") if cache.cache_dtype == "auto" else cache.cache_dtype
        self.layout = layout(config)
        self.modules = config.compilation_config.static_forward_context  # by layers' names, in a rank
        self.first = self.revision = revision(config, extra.get("revision", "")) + "+" + computation(config)
        self.adapters = Adapters(logger.warning)
        # Refuses what is too long.
        named = self.named("0" * 40 if config.lora_config else "") + another()
        longest = self.namespace(named, self.tp - 1, self.pp - 1)
        if self.node and len(self.node.encode()) + len(longest) > BATCH:
            raise ValueError(f"node and the namespace have more than {BATCH} bytes together: shorten node, "
                             f"--served-model-name or the setting revision: {self.node}, {longest}")

    def check(self, config, kv_cache_config):
        """Refuses what the connector cannot keep."""
        groups, parallel = kv_cache_config.kv_cache_groups, config.parallel_config
        around = get_current_vllm_config_or_none() or config  # in a rank, also that of a MultiConnector
        for policy in (config.kv_transfer_config.kv_load_failure_policy,
                       around.kv_transfer_config.kv_load_failure_policy):
            if policy != "recompute":
                raise ValueError(f'KVCachedConnector: kv_load_failure_policy is "{policy}", so requests fail if their '
                                 'blocks are gone; set "kv_load_failure_policy": "recompute" in '
                                 "--kv-transfer-config, and with a MultiConnector in this connector's entry too")
        if len(groups) != 1:
            raise ValueError(f"KVCachedConnector: the model's cache has {len(groups)} groups of layers, which keep "
                             "different tokens; one group is supported")
        spec = groups[0].kv_cache_spec
        if spec.block_size % TOKENS or spec.block_size > 32 * TOKENS:
            raise ValueError(f"KVCachedConnector: blocks of {spec.block_size} tokens; give --block-size 16, 32, 64, "
                             "128, 256 or 512")
        for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
            if getattr(parallel, name, 1) != 1:
                raise ValueError(f"KVCachedConnector: {name} {getattr(parallel, name)} is not supported, only 1")
        if getattr(config.cache_config, "calculate_kv_scales", False):
            raise ValueError("KVCachedConnector: --calculate-kv-scales makes blocks depend on earlier requests; "
                             "leave it out")
        kinds = {type(s).__name__ for s in getattr(spec, "kv_cache_specs", {"": spec}).values()}
        if odd := kinds - {"FullAttentionSpec", "MLAAttentionSpec"}:
            raise ValueError(f"KVCachedConnector: layers of {', '.join(sorted(odd))} keep no block of each token; "
                             "only full attention is supported")

    def store(self, timeout):
        """Returns a connection: the lease socket, or RESP if a test of the socket fails."""
        lease = Lease(self.socket, timeout)
        try:
            lease.find(self.namespace(self.revision, 0, 0), [])
            return lease
        except OSError as e:
            lease.close()
            if not self.resp:
                logger.warning("%s; until it answers, blocks are computed", e)
                return lease
            logger.warning("%s; blocks go through RESP at %s, with more copies", e, self.resp)
            return Resp(self.resp, timeout)

    def reads(self):
        """Returns what tells the daemon what this engine can read; None: node is not set."""
        if not self.node:
            return None
        return Reads(Lease(self.socket, TRANSFER), self.node, self.namespace(self.revision, 0, 0), logger.warning)

    def named(self, adapter):
        """Returns the revision with an adapter's weights. adapter names them, "" is the base."""
        return f"{self.revision}+{adapter}" if adapter else self.revision

    def namespace(self, named, tp_rank, pp_rank):
        """Returns the namespace of a rank for what named returned."""
        return namespaces.text(self.model, named, self.dtype, self.layout, self.block_tokens, (self.tp, tp_rank),
                               (self.pp, pp_rank))

    def adapter(self, lora):
        """Returns a name for the weights of an adapter; None: they cannot be named."""
        return self.adapters.name(lora) if lora else ""

    def reset(self):
        """Begins a generation of blocks: no engine has stored any, and no other one reads them."""
        self.revision = self.first + another()
        self.adapters.clear()


def another():
    """Returns what tells a generation's revision from all others."""
    return "+g." + secrets.token_hex(6)


def waits(layer):
    """Says whether a layer of vLLM waits for its blocks before anything reads them."""
    from vllm.model_executor.layers.attention import Attention, MLAAttention
    return type(layer) is Attention or type(layer) is MLAAttention and not layer.use_direct_call


def layout(config):
    """Names how a block's bytes lie in memory: by version, device, attention backend and order."""
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backend
    backend = get_current_attn_backend(config).get_name()
    order = getattr(config.cache_config, "kv_cache_layout", None) or "default"
    return ".".join(("vllm", vllm.__version__, current_platform.device_type, backend, str(order)))


def computation(config):
    """Names what else blocks depend on: configurations as overridden, and quantization."""
    draft = getattr(getattr(config, "speculative_config", None), "draft_model_config", None)
    names = ["quantization", "quantization_config"]
    if config.cache_config.cache_dtype != "auto":  # else the namespace has the model's
        names.append("dtype")
    of = [{"hf": m.hf_config, **{n: getattr(m, n, None) for n in names}} for m in (config.model_config, draft) if m]
    of.append(getattr(config.cache_config, "kv_cache_dtype_skip_layers", None))
    if "longrope" in namespaces.canonical(of):  # vLLM chooses its factors by this
        of.append(config.model_config.max_model_len)
    return namespaces.short(of)


def revision(config, given):
    """Names the weights, and those of a draft model with layers of its own."""
    model, draft = config.model_config, getattr(config, "speculative_config", None)
    made = given or weights(model.model, model.revision)
    if draft is not None and getattr(draft, "draft_model_config", None) is not None:
        of = draft.draft_model_config
        if of.model != model.model:
            made += "+" + weights(of.model, of.revision)
        made += "+" + str(draft.method)
    return made


def weights(model, revision):
    from huggingface_hub import snapshot_download
    from pathlib import Path
    try:
        if not Path(model).exists():
            model = snapshot_download(model, revision=revision, local_files_only=True)
        path = Path(model)
        return namespaces.revision_of(path if path.is_dir() else path.parent)
    except (OSError, ValueError) as e:
        raise ValueError(f"KVCachedConnector: the weights of {model} cannot be named ({e}); set revision in "
                         "kv_connector_extra_config to a text that names them") from e


@dataclass
class Plan(KVConnectorMetadata):
    """What the ranks do in a step. A rank makes its namespaces from the names of the weights."""

    step: int = 0
    loads: list = field(default_factory=list)  # (named, digests, places)
    others: bool = False  # another connector may load in the step
    saves: list = field(default_factory=list)  # (request, named, blocks)
    preempted: set = field(default_factory=set)
    ended: set = field(default_factory=set)  # finished requests of which no save follows


@dataclass
class Loaded(KVConnectorWorkerMetadata):
    """Says that a step's loads have a result. vLLM adds the places that failed, of all ranks."""

    step: int

    def aggregate(self, other):
        return self


class KVCachedConnector(KVConnectorBase_V1):
    """The connector, in the scheduler and in each rank."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        settings = Settings(vllm_config, kv_cache_config)
        self.side = Planner(settings) if role == KVConnectorRole.SCHEDULER else Rank(settings)

    @property
    def requires_kv_delivery(self):
        return False  # a block that was not kept is computed

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config):
        return True  # layers wait for their blocks between the pieces

    # In the scheduler.

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.side.matched(request, num_computed_tokens), False  # None: the engine asks again

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self.side.allocated(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        return self.side.plan(scheduler_output)

    def request_finished(self, request, block_ids):
        return self.side.finished(request)

    def bind_kv_cache_manager(self, kv_cache_manager):
        super().bind_kv_cache_manager(kv_cache_manager)
        self.engine_cache = kv_cache_manager

    def update_connector_output(self, connector_output):
        loaded, failed = connector_output.kv_connector_worker_meta, connector_output.invalid_block_ids
        if bad := self.side.loaded(loaded.step if loaded else 0, failed):
            self.engine_cache.evict_blocks(bad)  # else other requests find them before they are computed again

    def reset_cache(self):
        self.side.reset()
        return True

    # In a rank.

    def register_kv_caches(self, kv_caches):
        self.side.register(kv_caches)

    def handle_preemptions(self, kv_connector_metadata):
        self.side.preempted(kv_connector_metadata)

    def start_load_kv(self, forward_context, **_):
        self.side.load(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name):
        self.side.loader.wait(layer_name)

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **_):
        pass

    def wait_for_save(self):
        self.side.save(self._get_connector_metadata())

    def get_finished(self, finished_req_ids):
        return self.side.saved(), None  # the plan names those of which no save follows

    def get_block_ids_with_load_errors(self):
        return self.side.take_failed()

    def build_connector_worker_meta(self):
        return self.side.take_loaded()

    def shutdown(self):
        self.side.close()


class Followed:
    """A request, with how far its blocks are kept.

    With named None nothing names its blocks, and only its doubts count.
    """

    def __init__(self, request, named=None, chain=None, space=""):
        self.request, self.named, self.chain = request, named, chain
        self.found_here = None  # tokens that the engine's own cache had; None: not said
        self.places, self.kept, self.load, self.saves = [], 0, 0, False
        self.held, self.after, self.bad = [], 0, False  # as Doubts says
        self.stale = False  # followed before a reset
        self.params = getattr(request, "kv_transfer_params", None) if named else None
        self.hands_over, self.wait = asks(self.params), Wait(wanted(self.params, space))
        self.space = space  # namespace of the first rank
        self.found = 0  # leading blocks that were there at the last lookup of a request that waits
        self.own = self.gone = 0  # with hands_over: leading blocks in the engine, and those in the daemon too


class Planner:
    """The connector in the scheduler. It looks blocks up, and plans what ranks load and save."""

    def __init__(self, settings):
        self.settings, self.tokens = settings, settings.block_tokens
        self.store, self.reads, self.again = settings.store(LOOKUP), settings.reads(), 0.0
        self.followed = {}
        self.ended = {}  # finished requests with blocks that ranks read or will read
        self.left = []  # other finished requests that depend on a load without a result
        self.holds = {}  # requests that hold blocks
        self.doubts, self.steps = Doubts(), 0
        self.say()

    def say(self):
        logger.info("blocks are kept in %s", self.settings.namespace(self.settings.revision, 0, 0))

    def reset(self):
        """Forgets all blocks in the daemon. What runs now stores and loads no more."""
        self.settings.reset()
        if self.reads is not None:
            self.reads.anew(self.settings.namespace(self.settings.revision, 0, 0))
        for f in self.requests():
            f.stale, f.held = True, []
        self.say()

    def close(self):
        self.store.close()
        if self.reads is not None:
            self.reads.close()

    def follow(self, request):
        """Returns the request as followed, or None if its blocks are not named by their tokens."""
        f = self.followed.get(request.request_id)
        if f is None or f.stale:
            saves = f is not None and f.saves
            odd = getattr(request, "mm_features", None) or getattr(request, "prompt_embeds", None) is not None
            lora = request.lora_request
            adapter = None if odd else self.settings.adapter(lora)
            if adapter is None:
                self.followed.setdefault(request.request_id, Followed(request))
                return None
            named = self.settings.named(adapter)
            space = self.settings.namespace(named, 0, 0)
            if adapter and self.reads is not None:
                self.reads.use(lora.lora_name, space)
            start = seed(lora.lora_name if lora else self.settings.model, salt=request.cache_salt or "")
            f = self.followed[request.request_id] = Followed(request, named, Chain(start, self.tokens), space)
            f.saves = saves
        return f if f.named else None

    def matched(self, request, computed):
        """Returns how many tokens after the computed ones can be loaded; None: ask again."""
        f = self.follow(request)
        self.followed[request.request_id].found_here = computed
        first, last = computed // self.tokens, (request.num_tokens - 1) // self.tokens  # one is left to compute
        if f is None or request.skip_reading_prefix_cache or last <= first and not f.hands_over:
            return 0
        if time.monotonic() < self.again:
            f.wait.end()
            return 0
        if f.wait.pauses():
            return None
        f.chain.grow(request.all_token_ids, last)
        known = max(first, f.found)
        try:
            if f.hands_over:
                f.own, f.gone = first, self.leading(f, f.chain.digests[:first])
            rest = f.chain.digests[known:last]
            f.found = known + (in_parts(lambda part: self.leading(f, part), rest) if f.wait.tokens
                               else self.leading(f, rest))
        except OSError as e:
            self.again = time.monotonic() + AGAIN
            logger.warning("blocks not looked up: %s", e)
            f.wait.end()
            return 0
        if f.wait.goes_on(f.found * self.tokens, last * self.tokens, self.waiting(request)):
            return None
        found, f.found = f.found - first, 0
        return found * self.tokens

    def waiting(self, request):
        """Counts the requests that wait for blocks of another engine, and the given one."""
        return 1 + sum(f.wait.until is not None for r, f in self.followed.items() if r != request.request_id)

    def leading(self, f, digests):
        """Returns how many of the first blocks all ranks have."""
        for tp in range(self.settings.tp):
            for pp in range(self.settings.pp):
                found = self.store.find(self.settings.namespace(f.named, tp, pp), digests)
                digests = digests[: next((i for i, there in enumerate(found) if not there), len(found))]
                if not digests:
                    return 0
        return len(digests)

    def allocated(self, request, loaded):
        if f := self.follow(request):
            f.load = loaded // self.tokens

    def requests(self):
        return [*self.followed.values(), *self.ended.values(), *self.left]

    def loaded(self, step, failed):
        """Takes the result of a step's loads, 0: of no step. Returns the places with garbage."""
        bad = self.doubts.report(step, failed, self.requests()) if step or failed else set()
        self.left = [f for f in self.left if self.doubts.waits(f)]
        return bad

    def plan(self, scheduled):
        """Plans what ranks load and save in a step.

        Blocks that depend on a load without a result are saved in a later step.
        """
        self.steps += 1
        plan = Plan(self.steps, preempted=set(scheduled.preempted_req_ids or ()))
        for request in plan.preempted & self.followed.keys():
            self.leave(self.followed[request])
        old = scheduled.scheduled_cached_reqs
        steps = {new.req_id: (new.num_computed_tokens, new.block_ids, True) for new in scheduled.scheduled_new_reqs}
        steps |= {request: (old.num_computed_tokens[i], old.new_block_ids[i], request in old.resumed_req_ids)
                  for i, request in enumerate(old.req_ids)}
        for request, tokens in scheduled.num_scheduled_tokens.items():  # in order: they may share earlier ones' places
            if request in self.followed and request in steps:
                self.step(plan, tokens, request, *steps[request])
        for request, f in list(self.holds.items()):
            if f.held and self.doubts.waits(f):
                continue
            if f.held:
                plan.saves.append((request, f.named, f.held))
            f.held = []
            del self.holds[request]
        plan.ended = {r for r, f in self.ended.items() if not f.held}
        for request in plan.ended:
            del self.ended[request]
        return plan

    def leave(self, f):
        """Notes that a request has lost its places."""
        f.held = []
        if not self.doubts.waits(f):  # else others may have found what it has computed
            f.places = []

    def step(self, plan, tokens, request, computed, places, afresh):
        """Plans a request's next tokens. afresh: places are all that it has, not what is added."""
        f = self.followed[request]
        if afresh:
            f.places, f.kept = [], computed // self.tokens
            if f.hands_over and f.gone < f.own:  # the daemon has lost blocks that the other engine needs
                f.kept = f.gone
        if places:
            f.places += places[0]
        start, end = computed // self.tokens, computed + tokens
        f.kept = min(f.kept, start)  # what was not loaded is computed again
        begun = -(-computed // self.tokens)
        if afresh:
            self.doubts.begins(f, begun)
            ours = start - f.load if f.load else begun
            here = ours if f.found_here is None else f.found_here // self.tokens
            if others := f.places[here:ours]:  # another connector loads them, or has loaded them
                self.doubts.loads(f, others, plan.step)
                plan.others = True
                if f.hands_over:  # the daemon need not have them
                    f.kept = min(f.kept, here)
        if f.load:
            at = slice(start - f.load, start)
            plan.loads.append((f.named, f.chain.digests[at], f.places[at]))
            self.doubts.loads(f, f.places[at], plan.step)
            f.load = 0
        self.doubts.computes(f, begun, -(-end // self.tokens))
        if not f.named:
            return
        full = min(min(end, f.request.num_tokens) // self.tokens, len(f.places))
        if full > f.kept and not f.bad and not f.stale:
            f.chain.grow(f.request.all_token_ids, full)
            f.held += [(f.chain.digests[i], f.chain.parent(i) if i else bytes(32), f.chain.names[i], f.places[i])
                       for i in range(f.kept, full)]
            f.kept, f.saves, self.holds[request] = full, True, f

    def finished(self, request):
        """Ends a request. Returns whether ranks may still read its blocks, and its answer's params.

        If they may, they say when they do not.
        """
        f = self.followed.pop(request.request_id, None)
        if f is None:
            return False, None
        if f.saves:
            self.ended[request.request_id] = f
        elif self.doubts.waits(f):
            self.left.append(f)
        stored = 0 if time.monotonic() < self.again else min(request.num_prompt_tokens, request.num_computed_tokens)
        hands_over = f.hands_over and not f.stale
        return f.saves, says(stored // self.tokens * self.tokens, f.space) if hands_over else None


class Rank:
    """The connector in a rank: it copies blocks."""

    def __init__(self, settings):
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group
        self.settings = settings
        self.ranks = (get_tp_group().rank_in_group, get_pp_group().rank_in_group)
        self.loader = self.saver = None
        self.lock, self.failed, self.said = threading.Lock(), set(), 0.0
        self.step = 0  # of the loads of which vLLM has no result
        self.finished, self.dropped = set(), 0

    def register(self, caches):
        s = self.settings
        cache = Cache({n: caches[n] for n in s.layers if n in caches}, s.blocks)
        if cache.size > 64 << 20:
            raise ValueError(f"KVCachedConnector: a block has {cache.size} bytes, 64 MiB are allowed; give a smaller "
                             "--block-size")
        self.by_layer = all(waits(s.modules.get(n)) for n in cache.names)
        self.loader = Loader(s.store(TRANSFER), cache, self.not_loaded)
        self.saver = Saver(s.store(TRANSFER), cache, s.staging, self.not_saved)
        logger.info("rank %d.%d: blocks of %d bytes in %d layers, which wait for their blocks %s", *self.ranks, cache.size,
                    len(cache.layers), "one by one" if self.by_layer else "together")

    def close(self):
        for part in (self.loader, self.saver):
            if part is not None:
                part.close()
        self.loader = self.saver = None

    def load(self, plan):
        loads = [Load(self.settings.namespace(named, *self.ranks), digests, places)
                 for named, digests, places in plan.loads]
        if loads or plan.others:
            self.step = plan.step
        if loads:
            self.loader.begin(loads)
            if not self.by_layer:
                self.loader.wait()

    def not_loaded(self, places, why):
        with self.lock:
            self.failed.update(places)
        self.tell("%d blocks not loaded, which are computed: %s", len(places), why or "they are gone, or of another size")

    def take_failed(self):
        self.loader.wait()
        with self.lock:
            failed, self.failed = self.failed, set()
        return failed

    def take_loaded(self):
        """Returns that the step's loads have a result; None: it has loaded nothing."""
        step, self.step = self.step, 0
        return Loaded(step) if step else None

    def preempted(self, plan):
        if plan.preempted:
            self.saver.cancel(plan.preempted)

    def save(self, plan):
        self.loader.wait()
        computed = self.saver.cache.computed() if plan.saves else None
        for request, named, blocks in plan.saves:
            self.saver.add(Save(request, self.settings.namespace(named, *self.ranks), blocks, computed))
        self.finished |= plan.ended
        if self.saver.dropped > self.dropped:
            self.tell("%d blocks in all not kept, because too many waited or the daemon did not take them",
                      self.saver.dropped)
            self.dropped = self.saver.dropped

    def not_saved(self, why):
        self.tell("blocks not kept: %s", why)

    def saved(self):
        """Returns the finished requests whose blocks nobody reads any more."""
        idle = {r for r in self.finished if self.saver.idle(r)}
        self.finished -= idle
        return idle or None

    def tell(self, text, *values):
        """Logs a failure, at most one in a second."""
        now = time.monotonic()
        if now - self.said >= AGAIN:
            self.said = now
            logger.warning(text, *values)
