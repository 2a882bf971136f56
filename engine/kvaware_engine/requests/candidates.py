"""What every policy sees: one demand, and the columns of the workers that could take it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvaware_engine.profiles import HardwareProfile
from kvaware_engine.requests.settings import RequestSettings
from kvaware_engine.requests.words import FloatArray, RequestDemand

if TYPE_CHECKING:  # they are made of what is below
    from kvaware_engine.requests.options import Need
    from kvaware_engine.requests.reach import Reach
    from kvaware_engine.requests.transfers import Source
    from kvaware_engine.requests.workspace import Workspace

__all__ = ["Candidates", "WorkerFacts"]


@dataclass(slots=True, kw_only=True)
class WorkerFacts:
    """What a worker is, as opposed to how it is now. Replaced as a whole when it changes."""

    worker: str
    incarnation: str
    role: str
    """``both``, ``prefill`` or ``decode``; any other name counts as both."""
    address: str | None
    node: str | None
    rack: str | None
    zone: str | None
    clique: str | None
    """NVLink fabric."""
    capabilities: frozenset[str]
    """As ``Capability`` in kvaware_crds names them: ``tiers``, ``pin``, ``pull_from_peer``, …"""
    transfer_domain: str
    """Workers with the same one can take over each other's KV blocks (design §3)."""
    adapters: frozenset[str] | None
    """Adapters that it serves; None: unknown, any."""
    reserved_for: frozenset[str] | None
    """Tenants that alone may use it, by the reservedPool of their quotas; None: anybody."""
    publishes_events: bool
    """Whether its KV events are followed now."""


@dataclass(slots=True)
class Candidates:
    """One model's workers at one moment, live or of a snapshot; read only. All columns have the shape (slots,).

    One is made per request, by position: 0.6 µs, by name 1.7.
    """

    demand: RequestDemand
    expected_output_tokens: float
    now_s: float
    figures: FloatArray
    """Shape (FIGURES, slots), see ``Figure``."""
    facts: Sequence[WorkerFacts | None]
    """By slot; None: no worker."""
    classes: Sequence[HardwareProfile]
    """Of HARDWARE_CLASS, as corrected by what was observed."""
    barred: FloatArray
    """BARRED, and infinity as well for whom this demand cannot go to: role, pool too small, adapter, tenant's pool,
    candidates, refused before. Policies add it to their costs."""
    matched_tokens: FloatArray
    """Of the prompt, held there without a gap in any tier; at most ``demand.reusable_tokens``."""
    lower_tokens: Mapping[int, tuple[float, float]]
    """Slot → of these, tokens that lie only in CPU memory, and only on SSD. Usually empty."""
    deepest_tokens: float
    """The most that anybody holds."""
    bytes_per_token: float | None
    """Of KV cache, all GPUs of the worker together; None: unknown, no transfer can be priced or offered."""
    congestion: float
    """λ ≥ 0: what a millisecond of prefill taken now costs those who come next."""
    waits_ahead_ms: FloatArray | None = None
    """Shape (slots,): what waits at this demand's priority or above, where priorities differ; None: all that waits,
    FREE_AT_S."""
    remote_bytes: float | None = None
    """The most that the tenant may read from other workers now; None: not limited."""
    migration_bytes: float | None = None
    """The same for copies."""
    reuse_ratio: float | None = None
    """Chance that a prompt's tokens are asked for again, 0..1, over all of the model's workers: what a new copy may
    save. None: unknown, ``RequestCostSettings.unknown_reuse_ratio``."""
    reach: "Reach | None" = None
    """``Reach(facts)``: where the workers are and what can move between them, as columns; made once per change of the
    facts. None: it is made where it is needed, 0.1 ms at 64 workers, 10 ms at 7,000."""
    settings: RequestSettings = field(default_factory=RequestSettings)
    work: "Workspace | None" = None
    """Where costs are added up; of what is kept, None: it is made where it is needed."""
    need: "Need | None" = field(init=False, default=None, repr=False, compare=False)
    """Of ``options.need_of``, once somebody asked: costs, choice and two options share it. A changed copy asks anew."""
    sources: "list[Source] | None" = field(init=False, default=None, repr=False, compare=False)
    """The same of ``transfers.sources_of``."""
