"""The text of a model server's ``/metrics`` → what each of its data-parallel ranks reports.

vLLM and SGLang are told apart by their names; other families are passed over. Names: vLLM 0.32 as recorded, its older
ones, SGLang's ``srt/observability/metrics_collector.py`` up to 0.5.11 and after.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from prometheus_client.parser import parse_labels

from kvaware_cluster.parse.bounds import MAX_RANK, MAX_RANKS
from kvaware_crds.errors import WireError
from kvaware_engine.observations import ObjectKey
from kvaware_engine.reports import LatencyHistogram, ReportSource, WorkerCounters, WorkerReport

__all__ = ["parse_worker_metrics"]

FIGURES: Final[Mapping[str, tuple[str, ...]]] = {
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
    "block_size": ("sglang:page_size",),
    "blocks": ("sglang:num_pages",),
    "awake": ("vllm:engine_sleep_state",),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "generation_tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "finished_requests": ("vllm:request_success_total", "sglang:num_requests_total"),
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    "prefix_queried_tokens": (
        "vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries_total",
        "sglang:prompt_tokens_total",
    ),
    "prefix_hit_tokens": (
        "vllm:prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits_total",
        "sglang:cached_tokens_total",
    ),
}
"""Our figure to the families that tell it; the first that is there holds."""
HISTOGRAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "ttft": ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
    "tpot": (
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "vllm:request_time_per_output_token_seconds",
        "sglang:inter_token_latency_seconds",
        "sglang:time_per_output_token_seconds",
    ),
}
VLLM_CACHE: Final = "vllm:cache_config_info"
SGLANG_CACHE: Final = "sglang:cache_config_info"
PREFIXES: Final = ("vllm:", "sglang:")
_WANTED: Final = frozenset(
    {name for names in FIGURES.values() for name in names}
    | {f"{name}_{part}" for names in HISTOGRAMS.values() for name in names for part in ("bucket", "sum")}
    | {VLLM_CACHE, SGLANG_CACHE}
)
MAX_LINES: Final = 4096
"""Wanted lines of one scrape. A rank has some 90; reading an unknown one takes 15 µs, a known one 1 µs."""
MAX_LINE_CHARACTERS: Final = 4096
"""The longest of a vLLM, with its cache's whole configuration, has some 1,100."""
KEPT_CHARACTERS: Final = 2048
"""A longer line is read anew each time: what is kept of the others is 16 MB at most."""
MAX_BUCKETS: Final = 128
MAX_COUNT: Final = 2.0**53
"""Tokens or requests since a server's start; above it a count no longer grows by one."""
MAX_THINGS: Final = 1e9
"""Requests or blocks of one worker: 100 times what the largest pools have."""
ROUNDING: Final = 1.001
"""A share may be above 1 by so much."""


class _Series(NamedTuple):
    """What the part of a line before its value says."""

    name: str
    """Of the family."""
    rank: int | None
    """None: of the whole server."""
    shard: tuple[int, int]
    """Pipeline and tensor rank, which may each tell the same figure of one data-parallel rank."""
    bound_s: float | None
    """Of a histogram's bucket."""
    block_size: float | None
    blocks: float | None


@dataclass(slots=True)
class _Rank:
    """What one rank's lines add up to."""

    values: dict[str, dict[tuple[int, int], float]] = field(default_factory=dict)
    """By family and shard."""
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)
    """By family and upper bound."""
    block_size: float | None = None
    blocks: float | None = None

    def value(self, figure: str, *, most: float) -> float | None:
        """The first family that is there; None where none is, or its number is none."""
        for name in FIGURES[figure]:
            shards = self.values.get(name)
            if shards is not None:
                return _sane(shards[min(shards)], most=most)
        return None

    def whole(self, figure: str) -> int | None:
        """A number of things."""
        value = self.value(figure, most=MAX_THINGS)
        return None if value is None else round(value)

    def histogram(self, figure: str) -> LatencyHistogram | None:
        """The first family that is there; None where none is, or it contradicts itself."""
        for name in HISTOGRAMS[figure]:
            if name in self.buckets:
                shards = self.values.get(f"{name}_sum", {})
                return _histogram(self.buckets[name], shards[min(shards)] if shards else math.nan)
        return None


def parse_worker_metrics(
    text: str, *, pod: ObjectKey, model: ObjectKey, incarnation: str, observed_at_s: float
) -> tuple[WorkerReport, ...]:
    """Read one scrape.

    Each data-parallel rank that the server tells apart is a worker (vLLM's label ``engine``, SGLang's ``dp_rank``); a
    server without such labels is rank 0. What SGLang counts for all ranks together stands at the lowest, so that sums
    are right. A figure that is missing, no number, or out of all bounds is unknown.

    Args:
        text: The exposition text.
        pod: Where it came from.
        model: Whose workers these are.
        incarnation: Of the pod's server.
        observed_at_s: Monotonic, of the moment before the scrape.
    Returns: One report per rank, in order.
    Raises: WireError when a wanted line cannot be read, or none is there.
    """
    ranks: dict[int | None, _Rank] = defaultdict(_Rank)
    for series, value in _samples(text, pod):
        rank = ranks[series.rank]
        if series.block_size is not None or series.blocks is not None:
            rank.block_size, rank.blocks = series.block_size, series.blocks
        if series.bound_s is None:
            shards = rank.values.setdefault(series.name, {})
            shards[series.shard] = shards.get(series.shard, 0.0) + value
        else:
            buckets = rank.buckets.setdefault(series.name, {})
            buckets[series.bound_s] = buckets.get(series.bound_s, 0.0) + value
    if not ranks:
        raise WireError(
            f"worker {_shown(pod)}: expected vllm: or sglang: metrics, got {len(text)} characters of others"
        )
    told = sorted(rank for rank in ranks if rank is not None) or [0]
    if len(told) > MAX_RANKS:
        raise WireError(f"worker {_shown(pod)}: expected at most {MAX_RANKS} data-parallel ranks, got {len(told)}")
    if None in ranks:
        _give(ranks[None], ranks[told[0]])
    return tuple(
        _report(
            ranks[rank],
            worker=f"{pod.namespace}:{pod.name}:{rank}",
            model=model,
            incarnation=incarnation,
            observed_at_s=observed_at_s,
        )
        for rank in told
    )


def _samples(text: str, pod: ObjectKey) -> Iterator[tuple[_Series, float]]:
    """The wanted lines. They repeat from scrape to scrape but for their values, so what names them is read once."""
    lines = 0
    for line in text.split("\n"):
        if not line.startswith(PREFIXES):
            continue
        brace = line.find("{")
        if (line[:brace] if brace >= 0 else line.partition(" ")[0]) not in _WANTED:
            continue
        lines += 1
        if lines > MAX_LINES:
            raise WireError(f"worker {_shown(pod)}: expected at most {MAX_LINES} lines of known metrics, got more")
        if len(line) > MAX_LINE_CHARACTERS:
            raise WireError(
                f"worker {_shown(pod)}: expected lines of at most {MAX_LINE_CHARACTERS} characters, got {len(line)}"
            )
        end = line.rfind("}") + 1 if brace >= 0 else max(line.find(" "), 0)
        read = _series if end <= KEPT_CHARACTERS else _read_series
        try:
            series = read(line[:end])
            value = float(line[end:].split()[0])  # what may follow is a timestamp
        except (ValueError, IndexError, KeyError) as error:
            raise WireError(f"worker {_shown(pod)}: expected Prometheus text, a line could not be read") from error
        if series is not None:
            yield series, value


def _read_series(text: str) -> _Series | None:
    """Name and labels; None for a line that says nothing of its own."""
    if not text:
        raise ValueError("expected a name before a value, or labels that end")
    name, _, rest = text.partition("{")
    labels: Mapping[str, str] = parse_labels(rest.removesuffix("}")) if rest else {}
    if labels.get("priority") or labels.get("sleep_state", "awake") != "awake":
        return None  # SGLang's parts of a total that is told as well, with an empty priority; vLLM's other states
    histogram = name.removesuffix("_bucket")
    sizes = {VLLM_CACHE: ("block_size", "num_gpu_blocks"), SGLANG_CACHE: ("page_size", "num_pages")}.get(name)
    blocks = None if sizes is None else _number(labels.get(sizes[1]))
    if name == VLLM_CACHE and blocks is not None:
        blocks -= 1  # the null block holds nothing: of 80 blocks vLLM 0.32 used 79 at most
    return _Series(
        name=histogram,
        rank=_rank(labels.get("engine" if name.startswith("vllm:") else "dp_rank")),
        shard=(_rank(labels.get("pp_rank")) or 0, _rank(labels.get("tp_rank")) or 0),
        bound_s=None if histogram == name else float(labels["le"]),
        block_size=None if sizes is None else _number(labels.get(sizes[0])),
        blocks=blocks,
    )


_series = lru_cache(maxsize=8192)(_read_series)


def _rank(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdecimal() and len(text) < 6):
        return None
    rank = int(text)
    return rank if rank <= MAX_RANK else None


def _number(text: str | None) -> float | None:
    """A count that a label tells; before its pools are made vLLM says ``None``."""
    return float(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 12 else None


def _give(whole: _Rank, lowest: _Rank) -> None:
    """What the server tells of itself goes to its lowest rank, where that tells nothing itself."""
    lowest.values = whole.values | lowest.values
    lowest.buckets = whole.buckets | lowest.buckets
    if lowest.block_size is None and lowest.blocks is None:
        lowest.block_size, lowest.blocks = whole.block_size, whole.blocks


def _report(rank: _Rank, *, worker: str, model: ObjectKey, incarnation: str, observed_at_s: float) -> WorkerReport:
    usage = rank.value("kv_usage", most=ROUNDING)
    awake = rank.value("awake", most=1)
    block_size = _sane(rank.block_size, most=MAX_THINGS) or rank.value("block_size", most=MAX_THINGS)
    blocks = _sane(rank.blocks, most=MAX_THINGS) or rank.value("blocks", most=MAX_THINGS)
    return WorkerReport(
        worker=worker,
        model=model,
        incarnation=incarnation,
        source=ReportSource.SCRAPE,
        observed_at_s=observed_at_s,
        waiting=rank.whole("waiting"),
        running=rank.whole("running"),
        kv_blocks_total=round(blocks) if blocks else None,
        kv_usage_ratio=None if usage is None else min(usage, 1.0),
        block_size_tokens=round(block_size) if block_size else None,
        asleep=None if awake is None else awake == 0,
        counters=WorkerCounters(
            prompt_tokens=rank.value("prompt_tokens", most=MAX_COUNT),
            generation_tokens=rank.value("generation_tokens", most=MAX_COUNT),
            finished_requests=rank.value("finished_requests", most=MAX_COUNT),
            preemptions=rank.value("preemptions", most=MAX_COUNT),
            prefix_queried_tokens=rank.value("prefix_queried_tokens", most=MAX_COUNT),
            prefix_hit_tokens=rank.value("prefix_hit_tokens", most=MAX_COUNT),
            ttft=rank.histogram("ttft"),
            tpot=rank.histogram("tpot"),
        ),
    )


def _sane(value: float | None, *, most: float) -> float | None:
    """A finite number from 0 to ``most``, else None."""
    return value if value is not None and math.isfinite(value) and 0 <= value <= most else None


def _histogram(buckets: Mapping[float, float], total: float) -> LatencyHistogram | None:
    bounds = tuple(sorted(bound for bound in buckets if not math.isnan(bound)))
    counts = tuple(buckets[bound] for bound in bounds)
    usable = (
        1 < len(bounds) == len(buckets) <= MAX_BUCKETS
        and bounds[0] >= 0
        and bounds[-1] == math.inf
        and all(_sane(count, most=MAX_COUNT) is not None for count in counts)
        and all(below <= above for below, above in pairwise(counts))
        and _sane(total, most=math.inf) is not None
    )
    return LatencyHistogram(bounds_s=bounds, counts=counts, sum_s=total) if usable else None


def _shown(pod: ObjectKey) -> str:
    return f"{pod.namespace}/{pod.name}"
