"""The lease socket of cgn-kvcached: blocks in memory that daemon and engine share.

The wire is that of the Go package kv/frame: little-endian frames of fixed layout over a Unix stream
socket. A Lease is used by one thread at a time.
"""
import contextlib
import mmap
import os
import select
import socket
import struct
import time

from .digests import NAME, model_id

VERSION = 1
MAGIC = 0x65736165_6C6E6763  # "cgnlease"
HELLO, GET, RELEASE, STAGE, UNSTAGE, COMMIT, PING, KNOW, FIND, READ, ERROR = 1, 2, 3, 7, 8, 9, 13, 14, 15, 16, 255
OK, MISS, QUOTA, EXISTS = 0, 1, 4, 9
IF_ABSENT = 4
ALL_LAYERS = 0xFFFFFFFF
BATCH = 512  # addresses of a frame
GRANULE = 4096  # bytes; a block takes whole granules
AT_ONCE = 256 << 20  # bytes of blocks under lease, which other hosts may have to send before leases end

HEADER = struct.Struct("<IBBHQ")
WELCOME = struct.Struct("<HBBIQQqqQQQI12x")
GRANT = struct.Struct("<QqQIIQ")
INFO = struct.Struct("<IIIBB2x")
COMMIT_HEAD = struct.Struct("<6Iq32s32s")


class Lease:
    """A connection to this host's daemon. Every method raises OSError if the daemon is gone."""

    def __init__(self, path, timeout, name="vllm"):
        self.path, self.timeout, self.name = path, timeout, name
        self.socket, self.arena, self.instance = None, None, 0
        self.reads = {}  # what the daemon knows that this node's engine reads, with the status of the answer
        self.sequence, self.known, self.max_leases, self.max_leased = 0, {}, BATCH, 1 << 30

    def close(self):
        if self.socket is not None:
            self.socket.close()
        self.socket = None

    # Requests.

    @contextlib.contextmanager
    def connected(self):
        """Connects if needed, and closes the connection after a failure."""
        try:
            if self.socket is not None and ended(self.socket):
                self.close()
            if self.socket is None:
                self.connect()
            yield
        except (OSError, struct.error) as e:
            self.close()
            raise (Refused if isinstance(e, Refused) else OSError)(f"cgn-kvcached at {self.path}: {e}") from e

    def connect(self):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(self.timeout)
        self.socket.connect(self.path)
        self.known, self.reads = {}, {}
        body = struct.pack("<QHH4xQ32s", MAGIC, VERSION, VERSION, self.instance, self.name.encode())
        (_, answer), files = self.ask(HELLO, 0, body, files=True)
        (_, attached, _, self.max_leases, instance, size, _, now, self.max_leased, _, _, _) = WELCOME.unpack(answer)
        if abs(time.monotonic_ns() - now) > self.timeout * 1e9:
            raise OSError("the daemon's clock is another one; share its time namespace")
        if attached:
            if len(files) != 1:
                raise OSError("no memory came with the welcome")
            try:
                self.arena = memoryview(mmap.mmap(files[0], size, mmap.MAP_SHARED, mmap.PROT_READ))
            finally:
                os.close(files[0])
            self.instance = instance

    def ask(self, op, count, body, files=False):
        """Returns status and body of the answer, with files also the descriptors that came."""
        self.send([(op, count, body)])
        if files:
            return self.answer_with_files(op)
        return self.answer(op)

    def send(self, requests):
        out = bytearray()
        for op, count, body in requests:
            self.sequence += 1
            out += HEADER.pack(HEADER.size + len(body), op, 0, count, self.sequence)
            out += body
        self.socket.sendall(out)

    def answer(self, op, already=b""):
        head = already + self.exactly(HEADER.size - len(already))
        size, came, status, _, _ = HEADER.unpack(head)
        body = self.exactly(size - HEADER.size)
        return self.checked(op, came, status, body)

    def checked(self, op, came, status, body):
        if came == ERROR:
            raise Refused(f"refused: {body.decode(errors='replace')}")
        if came != op:
            raise OSError(f"an answer to {came}, not to {op}")
        return status, body

    def answer_with_files(self, op):
        head, files, _, _ = socket.recv_fds(self.socket, HEADER.size, 4)
        try:
            if not head:
                raise OSError("the connection was closed")
            return self.answer(op, head), files
        except OSError:
            for f in files:
                os.close(f)
            raise

    def exactly(self, length):
        got = bytearray(length)
        view, at = memoryview(got), 0
        while at < length:
            n = self.socket.recv_into(view[at:])
            if n == 0:
                raise OSError("the connection was closed")
            at += n
        return bytes(got)

    def know(self, namespace):
        """Tells the daemon the text of a namespace, and returns its id."""
        known = self.known.get(namespace)
        if known is None:
            text = namespace.encode()
            status, _ = self.ask(KNOW, len(text), text)
            if status != OK:
                raise OSError(f"namespace {namespace} refused with status {status}")
            known = self.known[namespace] = model_id(namespace)
        return known

    def read(self, node, namespaces):
        """Tells the daemon that the node's engine can read namespaces of rank 0, and no others.

        It counts while the connection lives. Returns those for which the daemon has no room.
        """
        with self.connected():
            gone = [n for n in self.reads if n not in namespaces]
            new = [n for n in namespaces if n not in self.reads]
            for namespace in gone:
                self.tell(node, namespace, end=True)
                del self.reads[namespace]
            for namespace in new:
                self.reads[namespace] = self.tell(node, namespace)
            if not gone and not new:
                self.ask(PING, 0, b"")
        return [n for n, status in self.reads.items() if status == QUOTA]

    def tell(self, node, namespace, end=False):
        texts = node.encode() + namespace.encode()
        status, _ = self.ask(READ, len(texts), struct.pack("<HH", len(node.encode()), end) + texts)
        if status not in (OK, QUOTA):
            raise OSError(f"namespace {namespace} refused with status {status}")
        return status

    def addresses(self, namespace, digests):
        rest = self.know(namespace) + struct.pack("<Q", ALL_LAYERS)
        return b"".join(d + rest for d in digests)

    # Blocks.

    def find(self, namespace, digests):
        """Returns for each block whether some host of the fleet has it."""
        found = []
        with self.connected():
            for i in range(0, len(digests), BATCH):
                some = digests[i : i + BATCH]
                status, body = self.ask(FIND, len(some), self.addresses(namespace, some))
                if status != OK:
                    raise OSError(f"a lookup ended with status {status}")
                found += [tiers != 0 for *_, tiers, _ in INFO.iter_unpack(body)]
        return found

    def at_once(self, size):
        """Returns how many blocks of this size may be read at once."""
        size = -(-size // GRANULE) * GRANULE
        return max(1, min(BATCH, self.max_leases, min(self.max_leased // 4, AT_ONCE) // size))

    @contextlib.contextmanager
    def get(self, namespace, digests):
        """Gives the blocks as pieces of the daemon's memory, None for a miss.

        What was read of them counts only if get ends without an error.
        """
        with self.connected():
            status, body = self.ask(GET, len(digests), self.addresses(namespace, digests))
            if status != OK:
                raise OSError(f"a get ended with status {status}")
            grants = [GRANT.unpack_from(body, i * GRANT.size) for i in range(len(digests))]
            held = [g for g in grants if g[5] & 0xFF == OK]
            arena, late = self.arena, False
            try:
                yield [arena[g[2] : g[2] + g[3]] if g[5] & 0xFF == OK else None for g in grants]
                late = any(g[1] <= time.monotonic_ns() for g in held)
            finally:
                if held:
                    self.send([(RELEASE, len(held), b"".join(struct.pack("<Q", g[0]) for g in held))])
        if late:
            raise Expired("the lease ended before the blocks were read")

    def room(self, size):
        """Returns memory for blocks that keep then stores."""
        with self.connected():
            (status, body), files = self.ask(STAGE, 0, struct.pack("<Q", size), files=True)
            if status != OK or len(files) != 1:
                raise OSError(f"no memory for blocks: status {status}")
            number, length = struct.unpack("<QQ", body)
            try:
                return Room(self.socket, number, memoryview(mmap.mmap(files[0], length)))
            finally:
                os.close(files[0])

    def keep(self, room, namespace, blocks):
        """Stores blocks (offset in room, length, digest, parent, names) and returns how many."""
        text, kept = namespace.encode(), 0
        with self.connected():
            if room.socket is not self.socket:
                raise OSError("the daemon has started anew")
            for i in range(0, len(blocks), BATCH):
                some = blocks[i : i + BATCH]
                self.send([self.commit(room, text, *b) for b in some])
                for _ in some:
                    _, body = self.answer(COMMIT)
                    kept += INFO.unpack(body)[4] in (OK, EXISTS)
        return kept

    def commit(self, room, text, offset, length, digest, parent, names):
        flags = IF_ABSENT | len(names) // NAME << 24
        head = COMMIT_HEAD.pack(room.number, flags, offset, length, 0, ALL_LAYERS, 0, digest, parent)
        return COMMIT, len(text) + len(names), head + text + names


def ended(connection):
    """Says whether the daemon has closed an idle connection, as it does when it starts anew."""
    look = select.poll()
    look.register(connection, select.POLLIN)
    try:
        return bool(look.poll(0)) and connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


class Room:
    """Memory that the engine writes and the daemon copies from, on one connection."""

    def __init__(self, connection, number, memory):
        self.socket, self.number, self.memory = connection, number, memory


class Refused(OSError):
    """The daemon does not take the request, as one of an older version."""


class Expired(OSError):
    """What was read must not be used."""
