"""Namespaces: everything besides its tokens that the bytes of a block depend on."""
import dataclasses
from hashlib import sha256
import json
from pathlib import Path
from urllib.parse import quote

from .digests import NAME, TOKENS

# Visible ASCII characters besides the three that separate.
PLAIN = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in "%;:")
LONGEST = 512  # bytes of a namespace and of the names in a block


def text(model, revision, dtype, layout, block_tokens, tp=(1, 0), pp=(1, 0), tenant=""):
    """Returns the canonical text of a namespace. tp and pp are a size and a rank."""
    fields = [quote(str(f), safe=PLAIN) for f in (model, revision, dtype, layout)]
    fields += [str(block_tokens), "%d.%d" % tp, "%d.%d" % pp, quote(tenant, safe=PLAIN)]
    made = ";".join(["kv1", *fields])
    most = LONGEST - NAME * (block_tokens // TOKENS - 1)
    if len(made) > most:
        raise ValueError(f"the namespace has {len(made)} bytes, {most} are allowed: shorten --served-model-name or the "
                         f"setting revision: {made}")
    return made


# Members of a model's configuration that do not change its blocks.
BESIDE = {"_auto_class", "_commit_hash", "_name_or_path", "auto_map", "bos_token_id", "eos_token_id", "id2label",
          "initializer_range", "label2id", "name_or_path", "output_attentions", "output_hidden_states", "pad_token_id",
          "problem_type", "return_dict", "transformers_version", "use_cache"}


def canonical(value):
    """Returns a value as JSON with sorted members, without those of BESIDE."""
    return json.dumps(plain(value), sort_keys=True)


def short(value):
    """Returns 16 hexadecimal digits that stand for a value."""
    return sha256(canonical(value).encode()).hexdigest()[:16]


def plain(value):
    """Returns a value as JSON knows it."""
    if callable(getattr(value, "to_dict", None)):
        value = value.to_dict()
    elif dataclasses.is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items() if k not in BESIDE}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(canonical(v) for v in value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


SAMPLES = 16  # pieces of a file that count
PIECE = 4096  # bytes of a piece
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")


def matching(directory, patterns):
    return sorted({f for pattern in patterns for f in directory.glob(pattern)})


def files_of(directory):
    """Returns names, lengths and times of the files that revision_of reads."""
    found = matching(Path(directory).resolve(), (*WEIGHTS, "*config.json"))
    return [(str(f), s.st_size, s.st_mtime_ns) for f in found for s in [f.stat()]]


def revision_of(directory):
    """Returns a name for the weights in a directory, the same on all hosts with equal files.

    A snapshot of a hub is named by its commit. Other directories are named by a hash over the
    configuration, and over the length and 16 pieces of each file of weights. The hash takes
    milliseconds for a large model. It misses a change that leaves all these pieces as they were,
    such as that of a few weights.
    """
    directory = Path(directory).resolve()
    if directory.parent.name == "snapshots" and len(directory.name) == 40:
        return directory.name
    files = matching(directory, WEIGHTS)
    if not files:
        raise ValueError(f"{directory} has no weights; set revision in kv_connector_extra_config to a text "
                         "that names them")
    total = sha256()
    for f in sorted(directory.glob("*config.json")):
        total.update(f.name.encode() + b"\0" + f.read_bytes())
    for f in files:
        length = f.stat().st_size
        total.update(b"%s\0%d\0" % (f.name.encode(), length))
        with f.open("rb") as content:
            for i in range(SAMPLES):
                content.seek(max(length - PIECE, 0) * i // (SAMPLES - 1))
                total.update(content.read(PIECE))
    return total.hexdigest()[:32]
