"""Digests of token blocks: the chain that the router and the cache daemon use too.

The chain begins with BLAKE3("cognitora.seq.v1\\0" + model + "\\0" + adapter + "\\0" + salt).
model is the name by which clients ask, a LoRA adapter's own for its prompts, and adapter is empty.
Each 16 tokens add BLAKE3 keyed by the digest before, over the tokens as little-endian uint32.
"""
from array import array
import sys

from blake3 import blake3

TOKENS = 16  # tokens of a digest
NAME = 8  # bytes of a block's name, the beginning of its digest


def seed(model, adapter="", salt=""):
    """Returns the beginning of a chain."""
    parts = (part.encode() for part in (model, adapter, salt))
    return blake3(b"cognitora.seq.v1\0" + b"\0".join(parts)).digest()


def model_id(namespace):
    """Returns the namespace's part of an address."""
    return blake3(b"cognitora.namespace.v1\0" + namespace.encode()).digest()


class Chain:
    """The digests of a growing sequence of tokens, one for each whole block of an engine.

    digests[i] is the digest of the last 16 tokens of engine block i, and names[i] are the names of
    the 16-token blocks in it before these, one after the other.
    """

    def __init__(self, start, block_tokens):
        self.start, self.block_tokens = start, block_tokens
        self.digests, self.names = [], []

    def grow(self, tokens, blocks):
        """Adds digests until there are as many as blocks. tokens is the whole sequence."""
        have = len(self.digests)
        if blocks <= have:
            return
        some = array("I", tokens[have * self.block_tokens : blocks * self.block_tokens])
        if sys.byteorder == "big":
            some.byteswap()
        data, last, step = some.tobytes(), self.parent(have), 4 * TOKENS
        for block in range(0, len(data), 4 * self.block_tokens):
            inner = []
            for at in range(block, block + 4 * self.block_tokens, step):
                last = blake3(data[at : at + step], key=last).digest()
                inner.append(last[:NAME])
            self.digests.append(last)
            self.names.append(b"".join(inner[:-1]))

    def parent(self, block):
        """Returns the digest that engine block `block` follows in the chain."""
        return self.digests[block - 1] if block else self.start
