"""KV connector of vLLM (V1) for cgn-kvcached, over RESP2. It keeps every full block that the server
computes, and loads blocks that any server of the fleet has kept. It serves one attention group on
one rank.

  vllm serve ... --kv-transfer-config '{"kv_connector": "KvcachedConnector", "kv_role": "kv_both",
    "kv_connector_module_path": "kvcached_connector", "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"address": "127.0.0.1:6380", "revision": "of the weights"}}'

A value is one layer's part of one block, as it lies in the attention backend's memory. Its key is
the block's address cgn:<namespace>:<layer>:<hash>. The hash is vLLM's own, 32 bytes of sha256. All
servers need the same PYTHONHASHSEED. The namespace names everything else that the bytes depend on.
"""
import socket
from dataclasses import dataclass, field
from urllib.parse import quote

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
from vllm.logger import init_logger
from vllm.platforms import current_platform

logger = init_logger("vllm.kvcached_connector")

TIMEOUT = 30  # seconds for an answer
AT_ONCE = 256  # keys of one MGET, commands written before their answers are read


class Client:
    """A connection in RESP2. It is opened anew after a failure."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.address, self.socket, self.answers = (host, int(port)), None, None

    def ask(self, commands):
        """Returns the answers of all commands; a str is b'+...' without the sign. Raises OSError,
        also for an error reply."""
        all_answers = []
        try:
            for i in range(0, len(commands), AT_ONCE):
                some = commands[i:i + AT_ONCE]
                if self.socket is None:
                    self.socket = socket.create_connection(self.address, TIMEOUT)
                    self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.answers = self.socket.makefile("rb")
                self.socket.sendall(b"".join(map(encode, some)))
                all_answers += [self.read() for _ in some]
        except (OSError, ValueError) as e:
            if self.socket is not None:
                self.answers.close()
                self.socket.close()
            self.socket = None
            raise OSError(f"cgn-kvcached at {self.address}: {e}") from e
        return all_answers

    def read(self):
        line = self.answers.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b":":
            return int(rest)
        if kind == b"*":
            return [self.read() for _ in range(int(rest))]
        if kind != b"$":
            raise ValueError((rest or b"the connection was closed").decode())
        if int(rest) < 0:
            return None
        value = self.answers.read(int(rest) + 2)
        if len(value) != int(rest) + 2:
            raise ValueError("the connection was closed")
        return value[:-2]


def encode(words):
    words = [w.encode() if isinstance(w, str) else w for w in words]
    return b"".join([b"*%d\r\n" % len(words)] + [b"$%d\r\n%s\r\n" % (len(w), w) for w in words])


PLAIN = "".join(map(chr, range(0x21, 0x7F))).translate({ord(c): None for c in "%;:"})


def namespace(config, revision):
    """Canonical text of everything besides the tokens and the layer that blocks depend on."""
    model, cache = config.model_config, config.cache_config
    dtype = str(model.dtype).removeprefix("torch.") if cache.cache_dtype == "auto" else cache.cache_dtype
    layout = ".".join(("vllm", vllm.__version__, current_platform.device_type, str(cache.kv_cache_layout)))
    texts = [quote(str(t), safe=PLAIN) for t in (model.served_model_name, revision, dtype, layout)]
    return ";".join(["kv1", *texts, str(cache.block_size), "1.0", "1.0", ""])


@dataclass
class Plan(KVConnectorMetadata):
    """What the worker does in a step: pairs of a block's hash and its place in the cache."""

    load: list = field(default_factory=list)
    store: list = field(default_factory=list)


@dataclass
class Followed:
    """A request, with how far its blocks are kept."""

    request: object
    blocks: list = field(default_factory=list)
    kept: int = 0
    load: int = 0  # blocks to load before its next step


class KvcachedConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        groups = kv_cache_config.kv_cache_groups
        if len(groups) != 1 or vllm_config.parallel_config.world_size != 1:
            raise ValueError("KvcachedConnector: one attention group on one rank, please")
        settings = self._kv_transfer_config.kv_connector_extra_config
        self.namespace = namespace(vllm_config, settings["revision"])
        self.layers = list(groups[0].layer_names)
        self.tokens = vllm_config.cache_config.block_size
        self.client = Client(settings["address"])
        self.client.ask([["PING"]])
        self.followed, self.caches, self.failed = {}, {}, set()
        logger.info("%s: %d layers in %s", role, len(self.layers), self.namespace)

    def key(self, layer, block_hash):
        return f"cgn:{self.namespace}:{layer}:{block_hash.hex()}"

    # In the worker.

    def register_kv_caches(self, kv_caches):
        self.caches = kv_caches

    def start_load_kv(self, forward_context, **_):
        plan = self._get_connector_metadata()
        for layer, name in enumerate(self.layers):
            cache = self.caches[name]
            for i in range(0, len(plan.load), AT_ONCE):
                some = plan.load[i:i + AT_ONCE]
                values = self.values(["MGET"] + [self.key(layer, h) for h, _ in some], len(some))
                for (_, place), value in zip(some, values):
                    if value is None or len(value) != cache[place].nbytes:
                        self.failed.add(place)  # vLLM computes what follows from there
                    else:
                        cache[place] = torch.frombuffer(bytearray(value), dtype=cache.dtype).view(cache[place].shape)

    def values(self, command, count):
        try:
            return self.client.ask([command])[0]
        except OSError as e:
            logger.warning("blocks not loaded: %s", e)
            return [None] * count

    def get_block_ids_with_load_errors(self):
        failed, self.failed = self.failed, set()
        return failed

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **_):
        pass

    def wait_for_save(self):
        plan = self._get_connector_metadata()
        try:
            self.client.ask([
                ["SET", self.key(layer, h), self.caches[name][place].contiguous().view(torch.uint8).numpy().tobytes()]
                for layer, name in enumerate(self.layers) for h, place in plan.store])
        except OSError as e:
            logger.warning("blocks not kept: %s", e)

    # In the scheduler.

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        first = num_computed_tokens // self.tokens
        last = (request.num_tokens - 1) // self.tokens  # at least one token is left to compute
        hashes = request.block_hashes[first:last]
        try:
            found = self.client.ask([
                ["EXISTS"] + [self.key(layer, h) for layer in range(len(self.layers))] for h in hashes])
        except OSError as e:
            logger.warning("blocks not looked up: %s", e)
            return 0, False
        leading = next((i for i, n in enumerate(found) if n < len(self.layers)), len(found))
        return leading * self.tokens, False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        f = self.followed.setdefault(request.request_id, Followed(request))
        f.load = num_external_tokens // self.tokens

    def build_connector_meta(self, scheduler_output):
        plan = Plan()
        for new in scheduler_output.scheduled_new_reqs:
            self.step(plan, scheduler_output, new.req_id, new.num_computed_tokens, new.block_ids, True)
        old = scheduler_output.scheduled_cached_reqs
        for i, req_id in enumerate(old.req_ids):
            self.step(plan, scheduler_output, req_id, old.num_computed_tokens[i], old.new_block_ids[i], req_id in old.resumed_req_ids)
        return plan

    def step(self, plan, scheduler_output, req_id, computed, blocks, afresh):
        """Plans a request's next tokens; afresh: blocks are all that it has, not what is added."""
        f = self.followed.get(req_id)
        if f is None:
            return
        if afresh:
            f.blocks, f.kept = [], computed // self.tokens
        f.blocks += blocks[0] if blocks else []
        f.kept = min(f.kept, computed // self.tokens)  # what was not loaded is computed again
        hashes, start = f.request.block_hashes, computed // self.tokens
        plan.load += zip(hashes[start - f.load:start], f.blocks[start - f.load:start])
        f.load = 0
        full = min((computed + scheduler_output.num_scheduled_tokens[req_id]) // self.tokens, len(hashes))
        if full > f.kept:
            plan.store += zip(hashes[f.kept:full], f.blocks[f.kept:full])
            f.kept = full

    def request_finished(self, request, block_ids):
        self.followed.pop(request.request_id, None)
        return False, None
