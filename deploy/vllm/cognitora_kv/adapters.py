"""Adapters: names for the weights of LoRA adapters, by their files."""
from collections import OrderedDict
from dataclasses import dataclass, replace
import time

from . import namespace as namespaces

AGAIN = 1.0  # seconds between looks at an adapter's files
MOST = 1024  # adapters


@dataclass
class Known:
    """An adapter's files at the first look, as a hash, and the name of its weights or None."""

    files: str
    name: str | None
    number: int  # the engine's, another one if it loads the adapter anew
    next: float  # time of the next look


class Adapters:
    """Names the weights of the last MOST adapters in use.

    The engine's own cache knows adapters by name and path. If the files change, it has blocks of
    the old weights, and nobody knows which are loaded. So they have no name until forgotten.
    """

    def __init__(self, warn, clock=time.monotonic):
        self.warn, self.clock = warn, clock
        self.known = OrderedDict()  # by name and path, the one used last at the end

    def name(self, lora):
        """Returns a name for an adapter's weights; None: they cannot be named.

        A look at the files holds for AGAIN seconds, unless the engine loads the adapter anew.
        """
        key, now = (lora.lora_name, lora.lora_path), self.clock()
        known = self.known.get(key)
        if known is None or lora.load_inplace or known.number != lora.lora_int_id or now >= known.next:
            known = self.known[key] = self.look(key, known, lora.lora_int_id, now + AGAIN)
            if len(self.known) > MOST:
                self.known.popitem(last=False)
        self.known.move_to_end(key)
        return known.name

    def look(self, key, known, number, then):
        """Returns what is known of an adapter after a look at its files."""
        made = replace(known, number=number, next=then) if known else Known("", None, number, then)
        why = ""
        try:
            files = namespaces.files_of(key[1])
            digest = namespaces.short(files)
            if known is None:
                made.files, made.name = digest, namespaces.revision_of(key[1])
            elif files and digest != made.files:  # the engine can go on without its files
                made.name, why = None, "its files have changed; load other weights from another path"
        except (OSError, ValueError) as e:
            made.name, why = None, str(e)
        if why and (known is None or known.name is not None):
            self.warn("blocks of adapter %s at %s are not kept: %s", *key, why)
        return made

    def clear(self):
        self.known.clear()
