"""Replies to filter that were given already: kube-scheduler asks again about a pod while nothing has changed."""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
from cachetools import LRUCache

from kvaware_engine import PodDemand, Reason

__all__ = ["Given", "Repeats"]


@dataclass(slots=True)
class Given:
    """One reply, and what it was the answer to."""

    demand: PodDemand
    version: int
    body: bytes
    """The request, kept whole instead of a key: hashing 5,000 names costs every call 0.2 ms, comparing costs only
    repeats."""
    names: frozenset[str] | None
    """From ``body``, made at the first repeat that offers the nodes in another order."""
    reply: bytes
    reason: Reason | None
    """Why the pod was refused; None: a node was admitted."""


class Repeats:
    """The last reply per pod, bounded in bytes. Names only: whole Node objects may differ behind the same names."""

    def __init__(self, max_bytes: int) -> None:
        self._given: LRUCache[str, Given] = LRUCache(max_bytes, getsizeof=lambda g: len(g.body) + len(g.reply) + 500)

    def get(self, demand: PodDemand, *, version: int, body: bytes, names: Sequence[str]) -> Given | None:
        """The reply, if this pod was judged with the same demand, nodes and state.

        kube-scheduler collects nodes in parallel, so the same nodes come in any order; it reads the reply as a set.
        """
        given = self._given.get(demand.uid)
        if given is None or given.version != version or given.demand != demand:
            return None
        if given.body != body:
            if given.names is None:
                given.names = frozenset(orjson.loads(given.body)["NodeNames"])
            if given.names != frozenset(names):
                return None
        return given

    def put(self, demand: PodDemand, *, version: int, body: bytes, reply: bytes, reason: Reason | None) -> None:
        """Keep a reply; one that is larger than the whole cache is not kept."""
        given = Given(demand=demand, version=version, body=body, names=None, reply=reply, reason=reason)
        self._given.pop(demand.uid, None)
        if self._given.getsizeof(given) <= self._given.maxsize:
            self._given[demand.uid] = given
