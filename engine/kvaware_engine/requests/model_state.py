"""One model as its requests see it: its workers' columns, who holds which blocks, its policy, how long answers are."""

from collections.abc import Collection, Iterator, Mapping
from math import isnan
from typing import Final, cast

import numpy as np

from kvaware_engine.blocks.budget import IndexBudget
from kvaware_engine.blocks.hashing import root_hash
from kvaware_engine.blocks.history import History, Sent
from kvaware_engine.blocks.index import BlockIndex, Expectation, Match
from kvaware_engine.blocks.residency import Residency
from kvaware_engine.observations import ModelObservation, Tier
from kvaware_engine.policies import Policy, policy_named
from kvaware_engine.profile_book import ProfileBook
from kvaware_engine.requests.candidates import Candidates, WorkerFacts
from kvaware_engine.requests.fit import precision_at, unfit
from kvaware_engine.requests.fleet import WorkerFleet
from kvaware_engine.requests.ledger import Reservation
from kvaware_engine.requests.links import NodeLinks
from kvaware_engine.requests.roles import DECODE, PREFILL
from kvaware_engine.requests.rows import BARRED, KV_TOTAL
from kvaware_engine.requests.settings import RequestSettings
from kvaware_engine.requests.trust import Trust
from kvaware_engine.requests.words import (
    BlockGroup,
    FloatArray,
    PlacementReason,
    PlacementRefusal,
    Precision,
    RequestDemand,
)
from kvaware_engine.settings import WorkerSettings

__all__ = ["ModelState"]

_NOTHING_LOWER: Final[Mapping[int, tuple[float, float]]] = {}
_INFINITE: Final = float("inf")
_ROOTS_KEPT: Final = 1024
"""By adapter and salt; more are computed each time, 2 µs."""


class ModelState:
    """Changed by its owner, ``Placer``, alone."""

    __slots__ = ("_roots", "_text_trust", "fleet", "history", "index", "observation", "policy", "residency", "settings")

    def __init__(
        self,
        observation: ModelObservation,
        *,
        settings: RequestSettings,
        profiles: ProfileBook,
        reports: WorkerSettings,
        links: NodeLinks,
        budget: IndexBudget,
    ) -> None:
        self.settings = settings
        self.observation = observation
        self.policy: Policy = policy_named(observation.policy, observation.policy_fields)
        self.fleet = WorkerFleet(observation.key, settings, profiles, reports=reports, links=links)
        self.fleet.configure(observation)
        self._know_no_blocks(budget)

    def observe(self, observation: ModelObservation) -> None:
        """The InferenceModel changed."""
        chosen = (observation.policy, observation.policy_fields)
        if chosen != (self.observation.policy, self.observation.policy_fields):
            self.policy = policy_named(*chosen)
        anew = observation.revision != self.observation.revision
        self.observation = observation
        if anew:  # blocks of other weights are no use, and their hashes begin elsewhere
            budget = self.index.budget
            self._leave(budget)
            self._know_no_blocks(budget)
        self.fleet.configure(observation)

    def name_of(self, slot: int) -> str:
        """The worker of a slot that has one."""
        return cast("WorkerFacts", self.fleet.facts[slot]).worker

    def candidates(
        self,
        demand: RequestDemand,
        *,
        expected_output_tokens: float,
        refused: Collection[str],
        remote_bytes: float | None,
        migration_bytes: float | None,
        now_s: float,
    ) -> tuple[Candidates, Match]:
        """What the policy sees, and where the prompt's walk through the index ended.

        The columns of the fleet are live: they hold until its next change.
        """
        fleet = self.fleet
        fleet.refresh(now_s)
        figures = fleet.figures
        matched = np.empty(figures.shape[1])  # new, since it is kept for explanations: 0.2 µs
        match = self.index.match(demand.block_hashes, matched)
        deepest_tokens = 0.0
        lower = _NOTHING_LOWER
        if match.deepest_blocks:
            tokens = demand.block_tokens
            deepest_tokens = float(match.deepest_blocks * tokens)
            matched *= np.array(float(tokens))  # an array: a Python number takes 0.5 µs more
            if deepest_tokens >= demand.input_tokens:
                deepest_tokens = float(demand.reusable_tokens)
                matched[matched > np.array(deepest_tokens)] = deepest_tokens
            if self._text_trust and demand.precision is Precision.APPROXIMATE:
                deepest_tokens = self._as_texts_prove(matched)
            if match.lower:
                lower = {slot: (cpu * tokens, ssd * tokens) for slot, (cpu, ssd) in match.lower.items()}
        candidates = Candidates(
            demand,
            expected_output_tokens,
            now_s,
            figures,
            fleet.facts,
            fleet.classes,
            self._barred(demand, refused),
            matched,
            lower,
            deepest_tokens,
            self.observation.kv_bytes_per_token,
            fleet.congestion(now_s),
            fleet.waits_ahead_ms(demand.priority, now_s),
            remote_bytes,
            migration_bytes,
            fleet.reuse_ratio,
            fleet.reach,
            self.settings,
            fleet.work,
        )
        return candidates, match

    def _barred(self, demand: RequestDemand, refused: Collection[str]) -> FloatArray:
        """Zero for whom the demand can go to, infinity for the others: the live column where it bars nobody more.

        Who refused another request is passed over only while somebody else can take this one. Otherwise one request
        that nobody takes would close a small model to all others.
        """
        fleet = self.fleet
        barred = self._barred_of(demand, refused, cast("FloatArray", fleet.figures[BARRED]))
        without_marks = fleet.without_marks
        if without_marks is None or self._takes(demand, barred):
            return barred
        return self._barred_of(demand, refused, without_marks)

    def _takes(self, demand: RequestDemand, barred: FloatArray) -> bool:
        """Whether anybody is left for the demand; where roles are split, for each part."""
        roles = self.fleet.roles
        if not roles.splits or demand.phase is not None:
            return bool((barred < _INFINITE).any())
        return all((barred + roles.barred(role) < _INFINITE).any() for role in (PREFILL, DECODE))

    def _barred_of(self, demand: RequestDemand, refused: Collection[str], barred: FloatArray) -> FloatArray:
        """``barred``, or a copy of it that bars those too whom this demand cannot go to."""
        fleet = self.fleet
        if not (
            demand.candidates is not None
            or refused
            or demand.phase is not None
            or demand.adapter is not None
            or fleet.reserves
            or demand.input_tokens > fleet.smallest_pool_tokens
        ):
            return barred
        barred = barred.copy()
        for slot, facts in enumerate(fleet.facts):
            if facts is not None and (facts.worker in refused or unfit(facts, demand) is not None):
                barred[slot] = _INFINITE
        barred[fleet.figures[KV_TOTAL] < demand.input_tokens] = _INFINITE
        return barred

    # -- what is known of blocks -------------------------------------------------------------------------------------

    @property
    def block_tokens(self) -> int:
        """Tokens per block: as the workers' events tell, else as most of their reports do, else as the spec says."""
        return self.residency.block_tokens or self.fleet.block_tokens

    def root(self, adapter: str | None, salt: str | None) -> int:
        """Where the hashes of prompts begin."""
        known = self._roots.get((adapter, salt))
        if known is None:
            known = root_hash(
                model=self.observation.key, revision=self.observation.revision, adapter=adapter, salt=salt
            )
            if len(self._roots) < _ROOTS_KEPT:
                self._roots[adapter, salt] = known
        return known

    def assume(self, reservation: Reservation, match: Match) -> None:
        """From now on the prompt's blocks count as held where it goes; of a pair, where it is computed and decoded."""
        hashes = reservation.demand.block_hashes
        if not hashes:
            return
        if reservation.prefill is None:
            reservation.assumed = (self._assumed(reservation.slot, reservation.demand, match),)
        else:
            reservation.assumed = tuple(
                [self._assumed(part.slot, reservation.demand, match) for part in reservation.parts]
            )

    def _assumed(self, slot: int, demand: RequestDemand, match: Match) -> Expectation | Sent:
        facts = self.fleet.facts[slot]
        if facts is not None and precision_at(facts, demand) is Precision.PRECISE:
            return self.index.expect(slot, demand.block_hashes, match)
        return self.history.sent(slot, demand.block_hashes, match, pool_blocks=self._pool_blocks(slot, demand))

    def unassume(self, reservation: Reservation, *, keep: bool) -> None:
        """Its request ended, or goes elsewhere.

        Args:
            reservation: Whose blocks are assumed.
            keep: Whether it ran: what a worker without events was sent stays. Blocks of one with events that no event
                has confirmed are not there.
        """
        assumed, reservation.assumed = reservation.assumed, None
        for each in assumed or ():
            if type(each) is Sent:
                if not keep:
                    self.history.unsent(each)
            else:
                self.index.end(each, keep=False)

    def verify(self, worker: str, demand: RequestDemand, *, predicted_tokens: float, cached_tokens: float) -> bool:
        """Compare what a request found with what was known of its worker's blocks.

        What a worker was sent is forgotten when it proves wrong too often. What it told itself is not: it would never
        be told again. Texts at a worker that tells are judged apart: they never meet what it tells.

        Returns: Whether the worker is to be asked anew what it holds.
        """
        slot = self.fleet.slot_of.get(worker)
        facts = None if slot is None else self.fleet.facts[slot]
        if slot is None or facts is None:
            return False
        if facts.publishes_events and precision_at(facts, demand) is Precision.APPROXIMATE:
            self._text_trust.setdefault(slot, Trust()).verify(predicted_tokens, cached_tokens)
            return False
        wrong = self.fleet.verify_hits(worker, predicted_tokens=predicted_tokens, cached_tokens=cached_tokens)
        if wrong and not facts.publishes_events:
            self.forget_blocks(slot)
            return False
        return wrong

    def _cleared(self, slot: int) -> None:
        self._text_trust.pop(slot, None)

    def _as_texts_prove(self, matched: FloatArray) -> float:
        """Take off what texts do not find at workers that tell of token ids. Returns: The deepest that is left."""
        for slot, trust in self._text_trust.items():
            matched[slot] *= trust.ratio
        return float(matched.max())

    def cached_tokens(self, worker: str) -> float:
        """That a worker is known to hold in HBM, by its events or by what it was sent."""
        slot = self.fleet.slot_of.get(worker)
        return 0.0 if slot is None else float(self.index.held_blocks(slot, Tier.HBM) * self.block_tokens)

    def forget_blocks(self, slot: int) -> None:
        """Nothing is known any more of what a worker holds."""
        self.index.clear(slot)  # who keeps places of it hears of it

    def _pool_blocks(self, slot: int, demand: RequestDemand) -> int | None:
        tokens = self.fleet.figures.item(KV_TOTAL, slot)
        return None if isnan(tokens) else max(1, int(tokens) // demand.block_tokens)

    def block_groups(self, most: int) -> Iterator[BlockGroup]:
        """Those that most prompts ran through, at most so many; one by one, see ``BlockIndex.groups``."""
        block_tokens = self.block_tokens
        for view in self.index.groups(most=most, name_of=self._name_of):
            yield BlockGroup(
                prefix=f"{view.last_hash:016x}",
                start_tokens=view.start_block * block_tokens,
                tokens=view.blocks * block_tokens,
                hits=view.hits,
                copies=view.holders,
            )

    def _name_of(self, slot: int) -> str | None:
        facts = self.fleet.facts[slot]
        return None if facts is None else facts.worker

    def close(self, budget: IndexBudget) -> None:
        """The model is gone."""
        self.fleet.close()
        self._leave(budget)

    def _know_no_blocks(self, budget: IndexBudget) -> None:
        observation, settings = self.observation, self.settings.index
        self.index = BlockIndex(budget)
        self.history = History(self.index, settings)
        self.residency = Residency(self.index, model=observation.key, revision=observation.revision, settings=settings)
        self._roots: dict[tuple[str | None, str | None], int] = {}
        self._text_trust: dict[int, Trust] = {}
        """By slot of a worker whose events are followed: how far texts find there what was assumed of them."""
        self.index.on_clear(self._cleared)

    def _leave(self, budget: IndexBudget) -> None:
        for part in (self.history, self.residency, self.index):
            budget.leave(part)

    # -- refusals ----------------------------------------------------------------------------------------------------

    def answer_max_tokens(self, demand: RequestDemand) -> float:
        """The longest answer that can be: what the context, or the largest pool, has left; infinity: unknown."""
        most = self.observation.max_context_tokens
        return max(0.0, (self.fleet.largest_pool_tokens if most is None else most) - demand.input_tokens)

    def too_long(self, demand: RequestDemand) -> PlacementRefusal | None:
        """Whether the prompt is longer than the model takes; None: it is not."""
        most = self.observation.max_context_tokens
        if most is None or demand.input_tokens <= most:
            return None
        return _prompt_too_long(demand, most, "spec.kvCache.maxContextTokens of the InferenceModel")

    def nobody(self, candidates: Candidates, refused_by: Collection[str]) -> PlacementRefusal:
        """Why there is no candidate: the prompt fits into no pool, or nobody can be chosen now."""
        demand, figures = candidates.demand, self.fleet.figures
        slots = list(self.fleet.slot_of.values())
        # Of all workers: one with a larger pool that drains or was not heard for a while may come back.
        pools = figures[KV_TOTAL, slots]
        if len(pools) and (pools < demand.input_tokens).all():
            return _prompt_too_long(demand, int(pools.max()), "the largest KV pool of the model's workers")
        known, serving = len(slots), int(np.count_nonzero(figures[BARRED, slots] == 0))
        if refused_by:
            why = f"expected one that did not refuse it; of {known}, {len(refused_by)} did"
        elif serving:
            why = f"expected one that the request and its tenant may use, of {serving} that serve none is"
        else:
            why = f"expected one that is Ready, reports and does not drain; of {known} none is"
        message = f"no worker of {demand.model.namespace}/{demand.model.name} can take the request now: {why}"
        return PlacementRefusal(demand=demand, reason=PlacementReason.NO_WORKER, message=message, retryable=True)


def _prompt_too_long(demand: RequestDemand, most: int, whose: str) -> PlacementRefusal:
    return PlacementRefusal(
        demand=demand,
        reason=PlacementReason.PROMPT_TOO_LONG,
        message=f"input_tokens: expected at most {most}, {whose}; got {demand.input_tokens}",
        details={"input_tokens": demand.input_tokens, "input_tokens_max": most},
    )
