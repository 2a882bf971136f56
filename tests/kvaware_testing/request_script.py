"""A long script of everything that reaches a ``Placer``, and what it answered: one line per answer.

``python -m kvaware_testing.request_script SEED`` prints them, under each policy. What a process draws by itself (the
hashes of texts, and with them the order of sets) must not show.
"""

import random
import sys
from collections.abc import Iterator

from kvaware_engine import Amounts, TenantQuotaObservation
from kvaware_engine.blocks.events import BlocksCleared, BlocksRemoved, BlocksStored
from kvaware_engine.blocks.hashing import chain
from kvaware_engine.observations import Tier
from kvaware_engine.requests.words import (
    EventType,
    EventVerdict,
    Placement,
    PlacementRefusal,
    Precision,
    RequestDemand,
)
from kvaware_testing.placer_builders import PlacerAtWork, model
from kvaware_testing.worker_builders import MODEL

__all__ = ["answers", "main"]

STEPS = 400
POLICIES = ("cost", "locality", "least_loaded", "power_of_two", "round_robin")
PROMPTS, TOKENS = 12, 640
"""Prompts that come again, each as long as the longest; requests take a beginning of one."""
BLOCK = 16
ROLES = ("both", "both", "both", "prefill", "decode", "both", "prefill", "decode")
CAPABILITIES = (("migrate",), ("pull_from_peer",), ("pull_from_peer", "tiers"))


class _Script:
    """Draws what happens next, and remembers what was placed."""

    def __init__(self, policy: str, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - what happens, no secret
        self.world = PlacerAtWork(0, seen=model(policy=policy))
        self.prompts = [[self.chance.randrange(50_000) for _ in range(TOKENS)] for _ in range(PROMPTS)]
        self.open: list[str] = []
        self.told: dict[str, int] = {}
        """Worker → blocks of the first prompts that it told of."""
        for number, role in enumerate(ROLES):
            self.world.names.append(f"ml:{role}-{number}:0")
            self.comes(number)

    def comes(self, number: int) -> None:
        """A worker is there, and reports."""
        name = self.world.names[number]
        capabilities = CAPABILITIES[number % len(CAPABILITIES)]
        self.world.expect(name, role=ROLES[number], node=f"n{number // 2}")
        self.world.hears(name, capabilities=capabilities, incarnation=f"i{self.chance.randrange(9)}")

    def step(self) -> Iterator[str]:
        """One thing happens."""
        self.world.now_s += self.chance.choice((0.001, 0.01, 0.1, 1.0))
        what = self.chance.choices(
            (self.request, self.event, self.report, self.blocks, self.loses, self.quota), (40, 40, 12, 12, 1, 1)
        )[0]
        yield from what()

    def request(self) -> Iterator[str]:
        """A demand, of any kind."""
        outcome = self.world.placer.place(self.demand(), now_s=self.world.now_s)
        if isinstance(outcome, Placement):
            self.open.append(outcome.placement_id)
        yield said(outcome)

    def demand(self) -> RequestDemand:
        """A beginning of a prompt, for one of three tenants, sometimes with wishes."""
        chance, names = self.chance, self.world.names
        tokens = chance.randrange(1, TOKENS)
        prompt = chance.choice(self.prompts)[:tokens]
        named = chance.sample(names, 4) if chance.random() < 0.2 else None
        return self.world.demand(
            tenant=chance.choice(("default", "a", "b")),
            input_tokens=tokens,
            block_hashes=chain(self.world.placer.root(MODEL, None, None), prompt, block_tokens=BLOCK),
            block_tokens=BLOCK,
            precision=Precision.PRECISE,
            priority=chance.choice((0, 0, 0, 5)),
            deadline_ms=chance.choice((None, None, 400.0)),
            expected_output_tokens=chance.choice((None, 10, 300)),
            candidates=None if named is None else frozenset(named),
            current_worker=chance.choice(names) if chance.random() < 0.1 else None,
        )

    def event(self) -> Iterator[str]:
        """Something becomes of a request; at its end it is explained."""
        if not self.open:
            return
        chance, placer = self.chance, self.world.placer
        placement_id = chance.choice(self.open)
        type_ = chance.choice(list(EventType))
        worker = chance.choice(self.world.names) if type_ is EventType.STARTED and chance.random() < 0.2 else None
        figures = {"output_tokens": chance.randrange(400), "cached_tokens": chance.randrange(TOKENS), "ttft_ms": 90.0}
        told = figures if type_ in (EventType.FINISHED, EventType.FIRST_TOKEN) else {}
        verdict, following = self.world.tells(placement_id, type_, worker=worker, **told)
        yield f"{verdict} {None if following is None else said(following)}"
        if type_ is EventType.FINISHED or verdict is EventVerdict.UNKNOWN_PLACEMENT:
            self.open.remove(placement_id)
            if chance.random() < 0.05:
                yield repr(placer.explain(placement_id))

    def report(self) -> Iterator[str]:
        """Workers report."""
        for name in self.world.names:
            if self.chance.random() < 0.8:
                self.world.hears(
                    name, waiting=self.chance.randrange(4), running=self.chance.randrange(9), batch_size=None
                )
        yield from ()

    def blocks(self) -> Iterator[str]:
        """A worker tells of its blocks."""
        chance, name = self.chance, self.chance.choice(self.world.names[:4])
        number = chance.randrange(PROMPTS)
        blocks = chance.randrange(1, TOKENS // BLOCK)
        hashes = [number << 32 | block for block in range(blocks)]
        stored = BlocksStored(
            engine_hashes=hashes, token_ids=self.prompts[number][: blocks * BLOCK], block_tokens=BLOCK
        )
        offloaded = (stored, BlocksStored(engine_hashes=hashes, tier=Tier.CPU), BlocksRemoved(engine_hashes=hashes))
        evicted = (BlocksRemoved(engine_hashes=hashes[::-1][: chance.randrange(1, 9)]),)
        events = chance.choices(((stored,), offloaded, evicted, (BlocksCleared(),)), (10, 10, 10, 1))[0]
        yield repr(self.world.placer.observe_blocks(name, events, now_s=self.world.now_s))

    def loses(self) -> Iterator[str]:
        """A worker goes, or starts again."""
        number = self.chance.randrange(len(ROLES))
        if self.chance.random() < 0.5:
            self.world.workers.expect(self.world.names[number], None)
        else:
            self.comes(number)
        yield from ()

    def quota(self) -> Iterator[str]:
        """Tenants get other limits."""
        tenant = self.chance.choice(("a", "b"))
        limits = Amounts(requests_per_s=self.chance.choice((None, 5)), concurrent_requests=self.chance.choice((3, 30)))
        quota = TenantQuotaObservation(
            name=f"of-{tenant}", uid="u", created_at="2026-01-01T00:00:00Z", tenant=tenant, namespaces=(), limits=limits
        )
        self.world.placer.observe_quota(f"of-{tenant}", quota)
        yield from ()


def said(outcome: Placement | PlacementRefusal) -> str:
    """All that was decided, but for the demand, in which a set has an order of its own."""
    names = [name for name in type(outcome).__slots__ if name != "demand"]
    return f"{outcome.demand.request_id} {[getattr(outcome, name) for name in names]}"


def answers(policy: str, seed: int) -> Iterator[str]:
    """Play the script."""
    script = _Script(policy, seed)
    for _ in range(STEPS):
        yield from script.step()
    yield repr(list(script.world.placer.block_groups(MODEL, 1000)))


def main(seed: int) -> None:
    """Print all answers."""
    for policy in POLICIES:
        print(policy, *answers(policy, seed), sep="\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
