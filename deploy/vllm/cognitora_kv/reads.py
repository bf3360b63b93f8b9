"""What a node's engine can read, for routers: they count no other blocks for the node."""
from collections import OrderedDict
import threading

from .lease import Refused

AGAIN = 1.0  # seconds between looks at the connection, and after a failure
LATER = 60.0  # seconds after a refusal
MOST = 64  # namespaces of a node


class Reads:
    """Tells the daemon which namespaces this engine reads, on a connection and a thread of its own.

    The first time is before the constructor returns, so before the engine serves. A daemon that has
    started anew is told within a second.
    """

    def __init__(self, lease, node, base, warn):
        self.lease, self.node, self.base, self.warn = lease, node, base, warn
        self.adapters = OrderedDict()  # namespace by adapter's name, the one used last at the end
        self.changed, self.closed, self.said = threading.Condition(), False, ""
        self.tell()
        self.thread = threading.Thread(target=self.run, name="cognitora_kv reads", daemon=True)
        self.thread.start()

    def use(self, adapter, namespace):
        """Notes that an adapter is in use. Other weights under the same name are read no longer."""
        with self.changed:
            if self.adapters.get(adapter) != namespace:
                self.adapters[adapter] = namespace
                if len(self.adapters) >= MOST:
                    self.adapters.popitem(last=False)
                self.changed.notify()
            self.adapters.move_to_end(adapter)

    def anew(self, base):
        """Notes that the base model's namespace is another one, and that no adapter is in use."""
        with self.changed:
            self.base = base
            self.adapters.clear()
            self.changed.notify()

    def wanted(self):
        return list(dict.fromkeys([self.base, *self.adapters.values()]))

    def tell(self):
        """Tells the daemon what is new. Returns the seconds until it is to be asked again."""
        with self.changed:
            wanted = self.wanted()
        try:
            left_out = self.lease.read(self.node, wanted)
            self.say(f"the daemon has no room to note that these are read: {', '.join(left_out)}" if left_out else "")
            return AGAIN
        except OSError as e:
            self.say(f"routers do not learn which blocks node {self.node} can read, and may count too many: {e}")
            return LATER if isinstance(e, Refused) else AGAIN

    def say(self, text):
        if text and text != self.said:
            self.warn("%s", text)
        self.said = text

    def run(self):
        wait, told = AGAIN, self.wanted()
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.closed or self.wanted() != told, wait)
                if self.closed:
                    return
                told = self.wanted()
            wait = self.tell()

    def close(self):
        with self.changed:
            self.closed = True
            self.changed.notify()
        self.thread.join()
        self.lease.close()
