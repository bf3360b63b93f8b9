"""Namespaces: everything besides its tokens that the bytes of a block depend on."""
from hashlib import sha256
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


SAMPLES = 16  # pieces of a file that count
PIECE = 4096  # bytes of a piece
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")


def revision_of(directory):
    """Returns a name for the weights in a directory, the same on all hosts with equal files.

    A snapshot of a hub is named by its commit. Other directories are named by a hash over the
    configuration, and over the length and 16 pieces of each file of weights. The hash takes
    milliseconds for a large model. It misses a change that leaves all these pieces as they were.
    """
    directory = Path(directory).resolve()
    if directory.parent.name == "snapshots" and len(directory.name) == 40:
        return directory.name
    files = sorted({f for pattern in WEIGHTS for f in directory.glob(pattern)})
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
