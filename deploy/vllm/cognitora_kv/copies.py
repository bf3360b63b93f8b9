"""Copies of blocks between an engine's cache and the daemon, behind the engine's computation.

A Loader loads blocks in batches, and the last batch layer by layer: the first layer computes while
later layers are copied. A Saver stores blocks. Each has one thread and one connection.
"""
from collections import deque
import contextlib
from dataclasses import dataclass
import threading
import warnings

import torch

ROOM = 32 << 20  # bytes of memory in which blocks are handed to the daemon, if a block is not larger


class Cache:
    """The engine's cache on this rank: a tensor for each layer, cut into blocks.

    The bytes of a block are its part of each layer, in the order of the layers.
    """

    def __init__(self, layers, blocks):
        """layers maps names to tensors, of which one of the first two dimensions counts blocks."""
        self.names, self.layers, self.offsets, self.size = list(layers), [], [], 0
        for name, tensor in layers.items():
            at = [d for d in (0, 1) if d < tensor.dim() and tensor.shape[d] == blocks]
            if not at:
                raise ValueError(f"{name}: no dimension of {tuple(tensor.shape)} counts the {blocks} blocks")
            if len(at) == 2:
                raise ValueError(f"{name}: both dimensions of {tuple(tensor.shape)} may count the {blocks} blocks; "
                                 "give another number of blocks with --num-gpu-blocks-override")
            layer = tensor.movedim(at[0], 0)
            self.layers.append(layer)
            self.offsets.append(self.size)
            self.size += layer[0].numel() * layer.element_size()

    def computed(self):
        """Returns an event on the device for all computation so far; None on a CPU."""
        if not self.layers[0].is_cuda:
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def part(self, memory, layer, offset=0):
        """Returns a layer's part of the block that lies in memory, bytes from offset on."""
        block = self.layers[layer][0]
        start = offset + self.offsets[layer]
        piece = memory[start : start + block.numel() * block.element_size()]
        return piece.view(block.dtype).view(block.shape)


def tensor_of(memory):
    """Returns a tensor of bytes over memory, which may be read-only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(memory, dtype=torch.uint8)


class Stream:
    """The order of a thread's copies on the engine's device. On a CPU it does nothing."""

    def __init__(self, device):
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def current(self):
        """Returns a context whose copies go to this stream."""
        return torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()

    def wait(self, event=None):
        """Lets the following copies wait for an event, or waits for all copies so far."""
        if self.stream and event:
            self.stream.wait_event(event)
        elif self.stream:
            self.stream.synchronize()


@dataclass
class Load:
    """Blocks to load: digests[i] to place places[i]."""

    namespace: str
    digests: list
    places: list


class Loader:
    """Loads blocks in a thread of its own. One step of the engine at a time uses a Loader."""

    def __init__(self, store, cache, failed):
        """failed is called with the places of blocks that could not be loaded, and the reason."""
        self.store, self.cache, self.failed = store, cache, failed
        self.index = {name: i for i, name in enumerate(cache.names)}
        self.progress = threading.Condition()
        self.done, self.work, self.ended = 0, None, False
        self.stream = Stream(cache.layers[0].device)
        self.thread = threading.Thread(target=self.run, name="kv loads", daemon=True)
        self.thread.start()

    def begin(self, loads):
        with self.progress:
            self.done, self.work = 0, loads
            self.progress.notify_all()

    def wait(self, layer=None):
        """Waits until a layer is loaded, or all are. What is missing has been told to failed.

        A layer without a cache of its own reads that of another layer, and waits for all.
        """
        if self.work is None:
            return
        enough = self.index.get(layer, len(self.index))
        with self.progress:
            self.progress.wait_for(lambda: self.work is None or self.done > enough)

    def close(self):
        with self.progress:
            self.ended = True
            self.progress.notify_all()
        self.thread.join()
        self.store.close()

    def run(self):
        while True:
            with self.progress:
                self.progress.wait_for(lambda: self.ended or self.work is not None)
                if self.ended:
                    return
                work = self.work
            some = list(self.batches(work))
            for i, batch in enumerate(some):
                try:
                    self.copy(*batch, last=i == len(some) - 1)
                except Exception as e:  # whatever it is, the engine computes these blocks
                    self.failed([p for *_, places in some[i:] for p in places], e)
                    break  # else each batch waits for a daemon that hangs
            with self.progress:
                self.work = None
                self.progress.notify_all()

    def batches(self, work):
        n = self.store.at_once(self.cache.size)
        for load in work:
            for i in range(0, len(load.digests), n):
                yield load.namespace, load.digests[i : i + n], load.places[i : i + n]

    def copy(self, namespace, digests, places, last):
        with self.store.get(namespace, digests) as pieces:
            found = []
            for piece, place in zip(pieces, places):
                if piece is None or len(piece) != self.cache.size:
                    self.failed([place], None)
                else:
                    found.append((tensor_of(piece), place))
            for i, layer in enumerate(self.cache.layers):
                with self.stream.current():
                    for piece, place in found:
                        layer[place].copy_(self.cache.part(piece, i))
                self.stream.wait()
                if last and i + 1 < len(self.cache.layers):
                    with self.progress:
                        self.done = i + 1
                        self.progress.notify_all()


@dataclass
class Save:
    """Blocks of a request to store: (digest, parent, names, place) each, once they are computed."""

    request: str
    namespace: str
    blocks: list
    computed: object = None  # event on the device


class Saver:
    """Stores blocks in a thread of its own, at most `most` bytes of blocks behind the engine.

    The engine must not change the blocks of a request before the request is idle.
    """

    def __init__(self, store, cache, most, told):
        """told is called with the reason if blocks were not stored."""
        self.store, self.cache, self.told = store, cache, told
        self.most = max(1, most // cache.size)
        self.changed = threading.Condition()
        self.queue, self.waiting, self.open, self.ended = deque(), 0, {}, False
        self.saved = self.dropped = 0
        self.room = None
        self.stream = Stream(cache.layers[0].device)
        self.thread = threading.Thread(target=self.run, name="kv saves", daemon=True)
        self.thread.start()

    def add(self, save):
        """Queues blocks, or drops them if too many wait."""
        with self.changed:
            if self.waiting + len(save.blocks) > self.most and self.waiting:
                self.dropped += len(save.blocks)
                return
            self.queue.append(save)
            self.waiting += len(save.blocks)
            self.open[save.request] = self.open.get(save.request, 0) + 1
            self.changed.notify_all()

    def idle(self, request):
        """Says whether nothing of a request waits."""
        with self.changed:
            return request not in self.open

    def cancel(self, requests):
        """Drops what waits of these requests, and waits for the rest."""
        with self.changed:
            for save in [s for s in self.queue if s.request in requests]:
                self.queue.remove(save)
                self.dropped += len(save.blocks)
                self.finish(save)
            self.changed.wait_for(lambda: not any(r in self.open for r in requests))

    def finish(self, save):
        """Ends a save. The caller holds the lock."""
        self.waiting -= len(save.blocks)
        self.open[save.request] -= 1
        if not self.open[save.request]:
            del self.open[save.request]
        self.changed.notify_all()

    def close(self):
        with self.changed:
            self.ended = True
            self.changed.notify_all()
        self.thread.join()
        self.store.close()

    def run(self):
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.ended or self.queue)
                if self.ended:
                    return
                save = self.queue.popleft()
            kept = 0
            try:
                kept = self.keep(save)
            except Exception as e:  # whatever it is, the blocks are computed again one day
                self.room = None
                self.told(e)
            with self.changed:
                self.saved += kept
                self.dropped += len(save.blocks) - kept
                self.finish(save)

    def keep(self, save):
        kept, size = 0, self.cache.size
        if self.room is None:
            self.room = self.store.room(max(ROOM // size, 1) * size)
            self.memory = tensor_of(self.room.memory)
        fit = len(self.room.memory) // size
        for at in range(0, len(save.blocks), fit):
            some = save.blocks[at : at + fit]
            with self.stream.current():
                self.stream.wait(save.computed)
                for i, layer in enumerate(self.cache.layers):
                    for n, (*_, place) in enumerate(some):
                        self.cache.part(self.memory, i, n * size).copy_(layer[place])
            self.stream.wait()
            kept += self.store.keep(self.room, save.namespace, [
                (n * size, size, digest, parent, names) for n, (digest, parent, names, _) in enumerate(some)])
        return kept
