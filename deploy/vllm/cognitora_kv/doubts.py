"""Doubts: which blocks of the engine's cache may hold garbage, because a load failed.

A step computes from the blocks that it loads. The engine reports failed loads after the step, or
after the step that follows. Until then, loaded blocks and all blocks computed from them are
unknown, and their saves are held. If the load failed, they are bad until computed again.

Places are the engine's numbers of blocks. Requests share places, so doubts spread by places.
"""


class Doubts:
    """The doubts about the places of requests. A request has places, held, after and bad.

    held are the blocks to save of which the load's result may be unknown, after is the last step
    whose loads they depend on, and bad says that the request computes from bad places.
    """

    def __init__(self):
        self.unknown = {}  # the last step whose loads a place depends on
        self.bad = set()
        self.reported = 0  # last step whose result is known

    def begins(self, f, computed):
        """Notes that a request goes on from its first places, which others may have computed."""
        before = f.places[:computed]
        f.after = max((self.unknown.get(p, 0) for p in before), default=0) if self.unknown else 0
        f.bad = not self.bad.isdisjoint(before)

    def loads(self, f, places, step):
        """Notes that a step loads some of a request's places."""
        self.bad.difference_update(places)
        self.unknown.update(dict.fromkeys(places, step))
        f.after = step

    def computes(self, f, first, last):
        """Notes that a step computes the places from first to last from all before them."""
        if f.bad:
            f.bad = not self.bad.isdisjoint(f.places[:first])
        if not (f.bad or self.bad or self.waits(f)):
            return
        written = f.places[first:last]
        if f.bad:
            self.bad.update(written)
        else:
            self.bad.difference_update(written)
        if self.waits(f):
            self.unknown.update(dict.fromkeys(written, f.after))

    def waits(self, f):
        """Says whether a request depends on loads of which the result is unknown."""
        return f.after > self.reported

    def report(self, step, failed, requests):
        """Takes the places that failed in a step's loads. Returns all places that they spoil.

        Bad requests lose the blocks they hold. The loads of an earlier step without a result have
        failed too.
        """
        bad = set(failed)
        bad.update(p for p, s in self.unknown.items() if s < step)
        self.unknown = {p: s for p, s in self.unknown.items() if s > step}
        self.reported = max(step, self.reported)
        left, before = list(requests), None
        while bad and len(left) != before:
            before, rest = len(left), []
            for f in left:
                first = next((i for i, p in enumerate(f.places) if p in bad), None)
                if first is None:
                    rest.append(f)
                else:
                    bad.update(f.places[first:])
                    f.bad, f.held = True, []
            left = rest
        self.bad |= bad
        return bad
