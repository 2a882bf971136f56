"""What can be done for a request at one worker, each option with its whole price: ``columns.py`` is held to it.

Built only for who is chosen, runner-up or explained.

- ``local``: what the worker holds, in any tier. ``recompute``: all of the prompt, whatever is held. Where the prompt is
  computed elsewhere (phase ``decode``) there is ``local`` alone: what is missing comes with the hand-over.
- ``remote_read``, ``migrate``: what another holds further (``transfers.py``), within the tenant's limits. A read and a
  copy cost the same time; a copy is the way where nothing can be read.
- ``warm_up``: where another holds more and nothing can bring it: a prefill of that prefix at the worker, so that a copy
  stays. It never beats ``recompute``, being two prefills, so the columns leave it out; an explanation shows its price.
- ``wait``: at the demand's ``current_worker``. It is in the queue there already: its own prefill is taken off the wait.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from kvaware_engine.decisions import CostTerms
from kvaware_engine.observations import Tier
from kvaware_engine.profiles import HardwareProfile
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.costs import (
    cost_terms,
    displaced_tokens,
    expected_tokens,
    exposed_ms,
    locality_gain_ms,
    memory_pressure_ms,
    queue_ms,
    room_ms,
    short_tokens,
    tier_load_ms,
    transfer_ms,
)
from kvaware_engine.requests.rows import (
    CLASS,
    CONFIDENCE,
    DECODE,
    FREE_AT,
    HALF_STEP,
    IN_FLIGHT,
    KV_FREE,
    KV_TOTAL,
    PRESSURE,
    REMAINING,
    REQUESTS,
    RISK,
)
from kvaware_engine.requests.transfers import (
    Source,
    Transfer,
    bytes_in_front,
    can_transfer,
    link_bytes_per_s,
    sources_of,
    transfers,
)
from kvaware_engine.requests.words import Action, Mode, Option, Phase

__all__ = ["Need", "best_option", "need_of", "options"]

_WARM_UP_AFTER_MS: Final = 1e-6


_LOCAL: Final = Action.LOCAL
_RECOMPUTE: Final = Action.RECOMPUTE
_EXPECTED: Final = Mode.EXPECTED
_HBM: Final = Tier.HBM
# An enum's member as an attribute of its class costs 0.04 µs each time.


@dataclass(slots=True)
class Need:
    """What a demand asks of every worker alike. Never changed once made."""

    input_tokens: float
    output_tokens: float
    """Decoded there: 0 for a prefill alone."""
    room_tokens: float
    """Prompt and output in the KV pool."""
    prefills: bool
    """The prompt is computed there; False: its KV comes with a hand-over."""
    congestion: float
    """λ; 0 without a prefill."""
    gain_ms: float


def need_of(candidates: Candidates) -> Need:
    """What the demand asks for, by its phase.

    The gain is the same everywhere: a copy of what nobody holds yet spares later requests the same work wherever they
    go, which is that of the fastest hardware. It lowers every total alike.
    """
    need = candidates.need
    if need is None:
        need = candidates.need = _find_need(candidates)
    return need


def _find_need(candidates: Candidates) -> Need:
    demand = candidates.demand
    tokens, phase = demand.input_tokens, demand.phase
    output = 0.0 if phase is Phase.PREFILL else candidates.expected_output_tokens
    if phase is Phase.DECODE:
        return Need(
            input_tokens=tokens,
            output_tokens=output,
            room_tokens=tokens + output,
            prefills=False,
            congestion=0.0,
            gain_ms=0.0,
        )
    reusable = len(demand.block_hashes) * demand.block_tokens
    if reusable >= tokens:
        reusable = demand.reusable_tokens
    resident = candidates.deepest_tokens
    gain_ms = 0.0
    if reusable > resident and candidates.classes:
        costs = candidates.settings.costs
        reuse = costs.unknown_reuse_ratio if candidates.reuse_ratio is None else candidates.reuse_ratio
        gain_ms = inf
        for profile in candidates.classes:
            gain_ms = min(
                gain_ms,
                locality_gain_ms(
                    new_tokens=reusable - resident,
                    resident_tokens=resident,
                    reuse_ratio=reuse,
                    horizon_requests=costs.gain_horizon_requests,
                    profile=profile,
                ),
            )
    return Need(tokens, output, tokens + output, True, candidates.congestion, gain_ms)


def options(candidates: Candidates, slot: int) -> tuple[Option, ...]:
    """Every option of one worker, the cheapest first; of equal ones in the order of the list above.

    Args:
        candidates: What was seen.
        slot: One with a worker; whether it is barred does not matter.
    Raises: ValueError where the slot has no worker.
    """
    place = _Place(candidates, slot)
    found = list(place.options(candidates.lower_tokens.get(slot)))
    found.sort(key=_rank)
    return tuple(found)


def _rank(option: Option) -> float:
    # A warm-up costs what computing at once does where a prefill has no base: then it must not win by a rounding.
    return option.terms.total + (_WARM_UP_AFTER_MS if option.action is Action.WARM_UP else 0.0)


def best_option(candidates: Candidates, slot: int) -> Option:
    """The cheapest option of one worker; 3 µs where nothing can be brought there, its pool has room and it prefills.

    Raises: ValueError where the slot has no worker.
    """
    if (
        slot in candidates.lower_tokens
        or candidates.demand.current_worker is not None
        or can_transfer(candidates)
        or (need := need_of(candidates)).room_tokens > candidates.figures.item(KV_FREE, slot)
        or not need.prefills
    ):
        return options(candidates, slot)[0]
    return _plain(candidates, need, slot)


def _plain(candidates: Candidates, need: Need, slot: int) -> Option:
    """What the worker does by itself in the usual case: the arithmetic of ``_Place.option`` without its calls."""
    facts = candidates.facts[slot]
    if facts is None:
        raise ValueError(f"slot {slot}: expected a worker, there is none")
    column: list[float] = candidates.figures[:, slot].tolist()
    waits = candidates.waits_ahead_ms
    ahead_ms = (column[FREE_AT] - candidates.now_s) * 1000.0 if waits is None else waits.item(slot)
    wait_ms = (ahead_ms if ahead_ms > 0 else 0.0) + column[HALF_STEP]
    held = candidates.matched_tokens.item(slot) * column[CONFIDENCE]
    profile = candidates.classes[int(column[CLASS])]
    prefill_ms = profile.prefill_ms(need.input_tokens - held, cached_tokens=held)
    decode_ms = column[DECODE] * need.output_tokens
    terms = CostTerms(
        wait_ms + decode_ms + prefill_ms * need.congestion,
        prefill_ms,
        0.0,
        (need.room_tokens - held) * column[PRESSURE],
        0.0,
        column[RISK],
        need.gain_ms,
    )
    # By position: 1 µs less than by name.
    if held > 0:
        return Option(slot, facts.worker, _LOCAL, _EXPECTED, terms, None, _HBM, int(held), 0, prefill_ms, wait_ms)
    return Option(slot, facts.worker, _RECOMPUTE, _EXPECTED, terms, None, None, 0, 0, prefill_ms, wait_ms)


class _Place:
    """One worker as a place for one demand."""

    __slots__ = ("candidates", "column", "facts", "need", "profile", "queue_ms", "slot")

    def __init__(self, candidates: Candidates, slot: int) -> None:
        facts = candidates.facts[slot]
        if facts is None:
            raise ValueError(f"slot {slot}: expected a worker, there is none")
        self.candidates, self.slot, self.facts = candidates, slot, facts
        self.need = need_of(candidates)
        self.column: list[float] = candidates.figures[:, slot].tolist()
        self.profile: HardwareProfile = candidates.classes[int(self.column[CLASS])]
        waits = candidates.waits_ahead_ms
        self.queue_ms = (
            queue_ms(self.column[FREE_AT], now_s=candidates.now_s) if waits is None else max(0.0, waits.item(slot))
        )

    def held_tokens(self) -> float:
        """Of the prompt, expected to be there."""
        return expected_tokens(self.candidates.matched_tokens.item(self.slot), confidence_ratio=self.column[CONFIDENCE])

    def options(self, lower: tuple[float, float] | None) -> Iterator[Option]:
        """All of them; ``lower``: tokens that lie only in the worker's CPU memory, and only on its SSD."""
        candidates = self.candidates
        held, load_ms, tier = self.held_tokens(), 0.0, Tier.HBM
        if lower is not None:
            cpu, ssd = (expected_tokens(tokens, confidence_ratio=self.column[CONFIDENCE]) for tokens in lower)
            if candidates.bytes_per_token is None:
                # Their loading cannot be priced. A server loads where that is faster than to compute: the upper bound.
                held = max(0.0, held - cpu - ssd)
            else:
                tier = Tier.SSD if ssd > 0 else Tier.CPU if cpu > 0 else Tier.HBM
                load_ms = tier_load_ms(
                    cpu_tokens=cpu,
                    ssd_tokens=ssd,
                    bytes_per_token=candidates.bytes_per_token,
                    host_bytes_per_s=candidates.settings.links.host_bytes_per_s,
                    disk_bytes_per_s=candidates.settings.links.disk_bytes_per_s,
                )
        here = tier if held > 0 else None
        if candidates.demand.current_worker == self.facts.worker:
            own_ms = self.prefill_ms(held)
            yield self.option(
                Action.WAIT, Mode.EXPECTED, cached=held, held=held, load_ms=load_ms, tier=here, queued_ms=own_ms
            )
        if held > 0 or not self.need.prefills:
            yield self.option(Action.LOCAL, Mode.EXPECTED, cached=held, held=held, load_ms=load_ms, tier=here)
        if not self.need.prefills:
            return
        further: Source | None = None
        brought = False
        can = can_transfer(candidates)
        for source in sources_of(candidates) if candidates.deepest_tokens > held else ():
            if source.slot == self.slot or source.tokens <= held:
                continue
            further = further or source
            for transfer in transfers(self.facts, source) if can else ():
                brought = True
                option = self.transferred(transfer, held=held, load_ms=load_ms)
                if option is not None:
                    yield option
        yield self.option(Action.RECOMPUTE, Mode.EXPECTED, cached=0.0, held=0.0)
        if further is not None and not brought:
            yield self.warmed_up(further.tokens)

    def prefill_ms(self, cached: float) -> float:
        """Of what is not cached; 0 where the prompt is computed elsewhere."""
        need = self.need
        if not need.prefills:
            return 0.0
        return self.profile.prefill_ms(need.input_tokens - cached, cached_tokens=cached)

    def transferred(self, transfer: Transfer, *, held: float, load_ms: float) -> Option | None:
        """A read or a copy; None: more bytes than the tenant may move now."""
        candidates, source = self.candidates, transfer.source
        reads = transfer.action is Action.REMOTE_READ
        moved = (source.tokens - held) * (candidates.bytes_per_token or 0.0)
        most = candidates.remote_bytes if reads else candidates.migration_bytes
        if most is not None and moved > most:
            return None
        in_flight = candidates.figures[IN_FLIGHT]
        takes_ms = transfer_ms(
            moved,
            bytes_in_front=bytes_in_front(
                source.facts, self.facts, in_flight=(in_flight.item(source.slot), self.column[IN_FLIGHT])
            ),
            bytes_per_s=link_bytes_per_s(candidates, source.facts, self.facts),
            latency_ms=candidates.settings.costs.transfer_latency_ms,
            lead_ms=transfer.lead_ms,
        )
        return self.option(
            transfer.action,
            transfer.mode,
            cached=source.tokens,
            held=held,
            load_ms=load_ms,
            tier=transfer.tier,
            source=source.facts.worker,
            moved_bytes=moved,
            network_ms=takes_ms if reads else None,
            migration_ms=None if reads else takes_ms,
        )

    def warmed_up(self, tokens: float) -> Option:
        """A prefill of the prefix that others hold, then one of the rest."""
        warming_ms = self.profile.prefill_ms(tokens)
        return self.option(
            Action.WARM_UP, Mode.COMMANDED, cached=tokens, held=0.0, migration_ms=warming_ms, warming_ms=warming_ms
        )

    def option(
        self,
        action: Action,
        mode: Mode,
        *,
        cached: float,
        held: float,
        load_ms: float = 0.0,
        tier: Tier | None = None,
        source: str | None = None,
        moved_bytes: float = 0.0,
        network_ms: float | None = None,
        migration_ms: float | None = None,
        queued_ms: float = 0.0,
        warming_ms: float = 0.0,
    ) -> Option:
        """One option, priced.

        Args:
            action: What happens.
            mode: Who sees to it.
            cached: Tokens that need no prefill in the end.
            held: Of them those that need no new room.
            load_ms: From the worker's own lower tiers.
            tier: Lowest that blocks are taken from.
            source: The worker that they come from.
            moved_bytes: Over the link.
            network_ms: A remote read's whole time; None: nothing is read.
            migration_ms: A copy's or warm-up's whole time; None: no copy is made.
            queued_ms: Its own prefill in the queue there.
            warming_ms: Of ``migration_ms``, what keeps the worker itself: no wait hides it.
        """
        need, column = self.need, self.column
        fresh = need.room_tokens - held
        free = column[KV_FREE]
        wait_ms = max(0.0, self.queue_ms - queued_ms) + column[HALF_STEP]
        if short := short_tokens(fresh, free_tokens=free):
            wait_ms += room_ms(
                short,
                free_tokens=free,
                total_tokens=column[KV_TOTAL],
                remaining_tokens=column[REMAINING],
                requests=column[REQUESTS],
                output_tokens=need.output_tokens,
                step_ms=2 * column[HALF_STEP] or column[DECODE],
            )
        prefill_ms = self.prefill_ms(cached)
        network = 0.0
        if network_ms is not None:
            penalty_ms = self.candidates.settings.costs.remote_step_penalty_ms * need.output_tokens
            network = exposed_ms(network_ms, wait_ms=wait_ms) + penalty_ms
        migration = 0.0
        if migration_ms is not None:
            migration = warming_ms + exposed_ms(migration_ms - warming_ms, wait_ms=wait_ms)
        return Option(
            slot=self.slot,
            worker=self.facts.worker,
            action=action,
            mode=mode,
            terms=cost_terms(
                wait_ms=wait_ms,
                decode_ms=column[DECODE] * need.output_tokens,
                prefill_ms=prefill_ms,
                warming_ms=warming_ms,
                congestion=need.congestion,
                load_ms=load_ms,
                migration_ms=migration,
                network_ms=network,
                pressure_ms=memory_pressure_ms(
                    displaced_tokens(fresh, free_tokens=free), pressure_ms_per_token=column[PRESSURE]
                ),
                risk_ms=column[RISK],
                gain_ms=need.gain_ms,
            ),
            source=source,
            tier=tier,
            matched_tokens=int(cached),
            transfer_bytes=int(moved_bytes),
            prefill_ms=prefill_ms + warming_ms,
            wait_ms=wait_ms,
        )
