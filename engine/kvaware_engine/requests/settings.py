"""What can be tuned in the placement of requests."""

from dataclasses import dataclass, field

from kvaware_engine.settings import LinkSettings, check_numbers

__all__ = ["IndexSettings", "RequestCostSettings", "RequestLedgerSettings", "RequestSettings", "TierCostSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCostSettings:
    """The policy ``locality``: relative cost of a whole prompt from each tier. Only the order and the ratios matter."""

    local_hbm: float = 0.0
    local_cpu: float = 10.0
    local_ssd: float = 50.0
    remote_memory: float = 80.0
    remote_ssd: float = 150.0
    recompute: float = 200.0

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCostSettings:
    """Prices that no profile gives."""

    unknown_reuse_ratio: float = 0.3
    """Chance that a cached token is asked for again, 0..1, where no hit ratio is told; see ``WorkerSettings``."""
    refused_ms: float = 50.0
    """What a refused assignment costs: one more round trip and decision."""
    refusal_mark_s: float = 5.0
    """A worker that refused is passed over for so long, or until it says that it is well (ai-dynamo/dynamo#12138)."""
    congestion_max_ratio: float = 0.95
    """The prefill utilisation at which the congestion price stops growing, 0..1: beyond it λ would have no bound."""
    congestion_window_s: float = 10.0
    """The prefill utilisation of a model's workers is taken over this time."""
    gain_horizon_requests: float = 1.0
    """For how many later requests of the same prefix a copy is expected to save its prefill."""
    remote_step_penalty_ms: float = 0.0
    """Per decode step, for servers that read remotely while decoding."""
    transfer_latency_ms: float = 5.0
    """From asking another worker for blocks to the first byte, whatever the link: a round trip of the connectors and
    the registration of the blocks; nominal."""
    sources_max: int = 4
    """Holders from which a remote read is priced per decision: those with the longest match, ties by what their links
    have in flight."""

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.congestion_max_ratio >= 1 or self.congestion_window_s <= 0:
            raise ValueError(
                "congestion_max_ratio, congestion_window_s: expected below 1 and above 0, got "
                f"{self.congestion_max_ratio}, {self.congestion_window_s}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """Bounds of what is known of KV blocks."""

    max_bytes: int = 4 * 2**30
    """Memory of all block indexes together, exactly accounted. Beyond it the groups least recently matched are
    forgotten; the workers keep them."""
    orphans_max: int = 10_000
    """Stored blocks per worker whose parent is not known yet; beyond it the oldest are dropped."""
    chunk_characters: int = 256
    """Characters of text that stand for one block where there are no token ids: some 64 tokens."""
    history_pool_blocks: int = 16_384
    """Blocks that are remembered of what was sent to a worker whose KV pool's size is unknown."""

    def __post_init__(self) -> None:
        check_numbers(self)
        _at_least_one(self, "max_bytes", "orphans_max", "chunk_characters", "history_pool_blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLedgerSettings:
    """Reservations of requests, and what a saturated model does."""

    ttl_s: float = 30.0
    """A reservation of which nothing is heard for so long ends. Each event of its request starts the time again: one
    that still reports progress is never reaped."""
    kept_finished: int = 5_000
    """Finished placements whose ids are still known."""
    kept_explained: int = 1_000
    """Placements that can be explained, the latest: each keeps what its decision saw, 13 KB at 64 workers."""
    attempts_max: int = 3
    """Workers that are tried for one request before it is refused."""
    saturation_wait_s: float = 30.0
    """A request is shed when the best worker would make it wait longer than this. What waits at a lower priority is
    not waited for, so the lowest priority is shed first."""
    expected_output_tokens: int = 256
    """Where neither the client nor what was observed tells."""
    expected_output_ratio: float = 0.5
    """The quantile of observed output lengths that is expected, 0..1, per model and tenant."""
    bucket_s: float = 1.0
    """Depth of the tenants' rate buckets: so many seconds' worth of their rates may come at once."""

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.ttl_s <= 0 or self.bucket_s <= 0:
            raise ValueError(f"ttl_s, bucket_s: expected numbers above 0, got {self.ttl_s}, {self.bucket_s}")
        _at_least_one(self, "attempts_max", "kept_finished", "kept_explained")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """All settings of the placement of requests."""

    links: LinkSettings = field(default_factory=LinkSettings)
    tiers: TierCostSettings = field(default_factory=TierCostSettings)
    costs: RequestCostSettings = field(default_factory=RequestCostSettings)
    index: IndexSettings = field(default_factory=IndexSettings)
    ledger: RequestLedgerSettings = field(default_factory=RequestLedgerSettings)


def _at_least_one(settings: object, *names: str) -> None:
    """Raises: ValueError that begins with the name, as whoever reads the settings from a file says it."""
    for name in names:
        if getattr(settings, name) < 1:
            raise ValueError(f"{name}: expected 1 or more, got {getattr(settings, name)}")
