"""cgn-kvcached over RESP2, for an engine that cannot reach the lease socket.

Resp has the methods of lease.Lease. Each block is copied through the connection.
"""
import contextlib
import socket

from .lease import ended

AT_ONCE = 64  # keys of one command, commands written before their answers are read


class Resp:
    """A connection to a daemon. Every method raises OSError if the daemon is gone."""

    def __init__(self, address, timeout):
        host, port = address.rsplit(":", 1)
        self.address, self.timeout = (host.strip("[]"), int(port)), timeout
        self.socket, self.answers = None, None

    def close(self):
        if self.socket is not None:
            self.answers.close()
            self.socket.close()
        self.socket = None

    def ask(self, commands):
        """Returns the answers of all commands."""
        try:
            if self.socket is not None and ended(self.socket):
                self.close()
            if self.socket is None:
                self.socket = socket.create_connection(self.address, self.timeout)
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.answers = self.socket.makefile("rb")
            for part in pieces(commands):
                self.socket.sendall(part)
            return [self.read() for _ in commands]
        except (OSError, ValueError) as e:
            self.close()
            raise OSError(f"cgn-kvcached at {self.address[0]}:{self.address[1]}: {e}") from e

    def read(self):
        line = self.answers.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"*":
            return [self.read() for _ in range(int(rest))]
        if kind == b"-":
            return ValueError(rest.decode())
        if kind != b"$":
            raise OSError("the connection was closed")
        if int(rest) < 0:
            return None
        value = self.answers.read(int(rest) + 2)
        if len(value) != int(rest) + 2:
            raise OSError("the connection was closed")
        return memoryview(value)[:-2]

    def find(self, namespace, digests):
        """Returns for each block whether some host of the fleet has it."""
        found = []
        for i in range(0, len(digests), AT_ONCE):
            found += [n == 1 for n in self.ask([[b"EXISTS", key(namespace, d)] for d in digests[i : i + AT_ONCE]])]
        return found

    def at_once(self, size):
        """Returns how many blocks of this size may be read at once."""
        return max(1, min(AT_ONCE, (64 << 20) // size))

    @contextlib.contextmanager
    def get(self, namespace, digests):
        """Gives the blocks, None for a miss."""
        (values,) = self.ask([[b"MGET", *(key(namespace, d) for d in digests)]])
        if isinstance(values, ValueError):
            raise OSError(str(values))
        yield values

    def room(self, size):
        """Returns memory for blocks that keep then stores."""
        return Room(memoryview(bytearray(size)))

    def keep(self, room, namespace, blocks):
        """Stores blocks (offset in room, length, digest, parent, names) and returns how many."""
        kept = 0
        for offset, length, digest, parent, names in blocks:
            name = key(namespace, digest) + b":%s:%s" % (parent.hex().encode(), names.hex().encode())
            (answer,) = self.ask([[b"SET", name, room.memory[offset : offset + length], b"NX"]])
            kept += not isinstance(answer, ValueError)
        return kept


LARGE = 1 << 16  # bytes of a word that is not copied before it is sent


def pieces(commands):
    """Returns the commands on the wire, with large words as they are."""
    out = bytearray()
    for words in commands:
        out += b"*%d\r\n" % len(words)
        for w in words:
            out += b"$%d\r\n" % len(w)
            if len(w) < LARGE:
                out += w
            else:
                yield out
                yield w
                out = bytearray()
            out += b"\r\n"
    yield out


class Room:
    """Memory of this process."""

    def __init__(self, memory):
        self.memory = memory


def key(namespace, digest):
    return b"cgn:%s:4294967295:%s" % (namespace.encode(), digest.hex().encode())
