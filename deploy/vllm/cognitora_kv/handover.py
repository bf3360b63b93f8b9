"""Hand-overs: what kv_transfer_params say, and how long an engine waits for another one's blocks.

A request with {"cgn_store": true} is computed for another engine. Its answer has {"cgn_tokens": N,
"cgn_space": S}: the blocks of the prompt's first N tokens are in the daemon, or on their way there,
in the namespace S. The request to the other engine repeats that, with "cgn_wait_ms": how long the
engine may wait for them. It does not wait for blocks of a namespace that it does not read.
"""
import time

from .digests import model_id

STORE, TOKENS, SPACE, WAIT = "cgn_store", "cgn_tokens", "cgn_space", "cgn_wait_ms"
USUAL = 1.0  # seconds of waiting, if the request does not say
LONGEST = 2.0  # seconds of waiting, whatever the request says
PAUSE = 0.004  # seconds between lookups of all requests that wait
MOST = 64  # requests that wait at a time
FEW = 16  # blocks of a request that a lookup begins with


def number(params, name, usual):
    """Returns a member that is a number, or what is usual."""
    value = params.get(name, usual) if isinstance(params, dict) else usual
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else usual


def asks(params):
    """Says whether the request is computed for another engine."""
    return isinstance(params, dict) and params.get(STORE) is True


def short(namespace):
    """Returns 16 hexadecimal digits that stand for a namespace."""
    return model_id(namespace)[:8].hex()


def says(tokens, namespace):
    """Returns what the answer says about the stored tokens; None: nothing is stored."""
    return {TOKENS: tokens, SPACE: short(namespace)} if tokens > 0 else None


def wanted(params, namespace):
    """Returns how many tokens another engine stores in the namespace, and how long to wait."""
    if isinstance(params, dict) and params.get(SPACE, short(namespace)) != short(namespace):
        return 0, 0.0
    seconds = number(params, WAIT, USUAL * 1e3) / 1e3
    return max(0, number(params, TOKENS, 0)), min(max(seconds, 0), LONGEST)


def in_parts(leading, digests):
    """Returns how many of the first blocks are there.

    leading says that about some of them. Blocks of a prompt are stored in their order, so a lookup
    asks about a few, and about more only if these are there.
    """
    found, some = 0, FEW
    while found < len(digests):
        part = digests[found : found + some]
        there = leading(part)
        found, some = found + there, some * 4
        if there < len(part):
            break
    return found


class Wait:
    """The wait of a request for blocks that another engine stores, from the first lookup on."""

    def __init__(self, what, clock=time.monotonic):
        self.tokens, self.seconds = what
        self.clock, self.until, self.next = clock, None, 0.0

    def pauses(self):
        """Says whether it is too early to look the blocks up again."""
        return self.until is not None and self.clock() < self.next

    def goes_on(self, there, most, waiting):
        """Says whether to look again later.

        there tokens can be found, most can be used, and so many requests wait. If they are more
        than MOST, the request does not.
        """
        now = self.clock()
        if self.until is None:
            self.until = now + self.seconds
        self.next = now + PAUSE * waiting
        if there < min(self.tokens, most) and now < self.until and waiting <= MOST:
            return True
        self.end()
        return False

    def end(self):
        """Ends the wait for good."""
        self.until, self.tokens = None, 0
