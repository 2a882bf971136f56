"""What can be tuned in the engine. Bandwidths are nominal figures of common hardware, to be replaced by profiles."""

from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any

__all__ = [
    "EngineSettings",
    "FindingSettings",
    "HbmSettings",
    "LinkSettings",
    "PodCostSettings",
    "ScalingSettings",
    "WorkerSettings",
    "check_numbers",
]


def check_numbers(settings: Any) -> None:
    """Hold every number of a settings group to what its name's ending allows.

    Ratios lie between 0 and 1, speeds and scales are above 0, everything else is 0 or more.
    Raises: ValueError.
    """
    for one in fields(settings):
        value = getattr(settings, one.name)
        if not isinstance(value, int | float):
            continue
        if "_ratio" in one.name:
            allowed, fits = "a number from 0 to 1", 0 <= value <= 1
        elif one.name.endswith(("_per_s", "scale_ms")):
            allowed, fits = "a number above 0", value > 0
        else:
            allowed, fits = "a number of 0 or more", value >= 0
        if not (fits and isfinite(value)):
            raise ValueError(f"{one.name}: expected {allowed}, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HbmSettings:
    """How much of a GPU's memory pods may be promised."""

    label_margin_ratio: float = 0.02
    """Kept back from the label's size, 0..1: ``gpu.memory`` includes what the driver keeps (659 of 81559 MiB on an
    H100, KAI-Scheduler#2212). Where DCGM shows free + used, that is taken instead and this margin is not."""
    unknown_foreign_use_margin_ratio: float = 0.05
    """Kept back as well, 0..1, on nodes without an exporter: somebody else's use cannot be seen there."""
    age_margin_ratio_per_minute: float = 0.01
    """Kept back per whole minute of age of the exporter's figures, 0..1."""
    age_margin_max_ratio: float = 0.10
    """The most that age keeps back, 0..1."""
    whole_gpu_free_ratio: float = 0.90
    """A pod that wants whole GPUs is given one when at least this share of it is free, 0..1: contexts and monitoring
    agents hold some hundred MiB on every GPU."""

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingSettings:
    """When pods are said to use more HBM than they reserved, or to run where nobody shows what others use."""

    overrun_tolerance_bytes: int = 512 * 2**20
    """A pod may use this much above its reservation: CUDA context and communication buffers of a process, which model
    servers leave out of the share that they are told to use."""
    hold_scrapes: int = 3
    """So many scrapes in a row must agree before an overrun begins or ends: 45 s at the usual interval."""
    hold_s: float = 60.0
    """A node's exporter must be missing, or be back, for so long before its pods are told."""

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Bandwidths over which weights and KV blocks reach a node's HBM, in bytes per second."""

    disk_bytes_per_s: float = 4e9
    """Weights from the node's own disk into HBM: one NVMe drive, sequential, nominal."""
    host_bytes_per_s: float = 25e9
    """KV blocks from CPU memory: PCIe 4.0 x16, nominal."""
    clique_bytes_per_s: float = 50e9
    """Inside one NVLink clique, per direction and GPU, nominal less protocol."""
    rack_bytes_per_s: float = 12.5e9
    """Inside one rack: 100 Gbit/s."""
    zone_bytes_per_s: float = 3.125e9
    """Inside one zone: 25 Gbit/s."""
    far_bytes_per_s: float = 1.25e9
    """From anywhere else, the model registry included: 10 Gbit/s."""

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCostSettings:
    """Prices of a pod's placement that are not transfers, in milliseconds unless said otherwise."""

    weights_share_of_footprint_ratio: float = 0.7
    """Weights as a share of gpus * HBM per GPU where ``spec.weights.size`` is not set, 0..1."""
    prefill_tokens_per_s: float = 10000.0
    """Speed of recomputing KV blocks: llama2-70b on 4 H100, 2,048 tokens at batch 1, median 10,205 (Splitwise's
    published performance traces)."""
    fragmentation_ms: float = 2000.0
    """For leaving a node's (shared: a GPU's) whole rest unused; falls with the share that stays free."""
    oversize_ms: float = 2000.0
    """For each 80 GB of HBM that a whole GPU has more than the pod needs: large HBM is left for large models."""
    crowding_ms: float = 3000.0
    """For each pod of the same model on the node: they share its host, links and fate."""
    clique_gain_ms: float = 1000.0
    """For a node in the NVLink clique of another pod of the model."""
    rack_gain_ms: float = 500.0
    """For a node in the rack of another pod of the model."""
    doubt_ms: float = 10000.0
    """A failed start and the next attempt; charged times (1 - confidence)."""
    score_scale_ms: float = 5000.0
    """A node that costs this much more than the first choice scores half of 9."""

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """All of the engine's settings."""

    scheduler_name: str = "kvaware-scheduler"
    """Pods with this ``schedulerName`` that ask for a GPU are ours."""
    intent_ttl_s: float = 10.0
    """How long the guess that a pod goes to its first choice is kept without a bind."""
    nomination_ttl_s: float = 60.0
    """How long a nominated node's room is kept for a preemptor once nobody leaves there any more: kube-scheduler tries
    again within 10 s, and an exporter's figures may count a pod that has just gone for a scrape or two."""
    group_hold_ttl_s: float = 660.0
    """How long the room of a group's pod is kept after another pod of the group was bound: kube-scheduler may wait 600
    s for a pod's volumes before it binds it."""
    weights_ttl_s: float = 3600.0
    """How long a node is believed to still have the weights of a model after its last pod left."""
    use_max_age_s: float = 300.0
    """Older exporter figures count as no exporter."""
    no_exporter_confidence_ratio: float = 0.7
    """How far the state of a node without an exporter is believed, 0..1."""
    hbm: HbmSettings = field(default_factory=HbmSettings)
    findings: FindingSettings = field(default_factory=FindingSettings)
    links: LinkSettings = field(default_factory=LinkSettings)
    pod_costs: PodCostSettings = field(default_factory=PodCostSettings)

    def __post_init__(self) -> None:
        if not self.scheduler_name:
            raise ValueError("scheduler_name: expected a name, got an empty string")
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How far workers' reports are believed, and over which time their rates are taken."""

    report_interval_s: float = 10.0
    """Time between two reports of a worker. Younger reports are believed fully."""
    report_timeout_intervals: float = 4.0
    """A worker whose last report is older than so many intervals does not count as reporting. At least 1: with a
    time-out below one interval, healthy workers would drop out between two reports (llm-d/llm-d-router#2408)."""
    rate_window_s: float = 60.0
    """Rates, hit ratios and latency percentiles are taken over this time."""
    absence_kept_s: float = 60.0
    """A worker that leaves the API server's view and comes back as the same incarnation within this time is
    what it was."""
    unknown_reuse_ratio: float = 0.3
    """Chance that a cached token is asked for again, 0..1, where no hit ratio is told. The conversation trace that
    Mooncake published reuses some 40 % of its blocks; less is believed of unknown traffic."""

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.report_interval_s <= 0 or self.rate_window_s <= 0:
            raise ValueError(
                "report_interval_s, rate_window_s: expected numbers above 0, got "
                f"{self.report_interval_s}, {self.rate_window_s}"
            )
        if self.report_timeout_intervals < 1:
            raise ValueError(f"report_timeout_intervals: expected 1 or more, got {self.report_timeout_intervals}")

    @property
    def report_timeout_s(self) -> float:
        """Age beyond which a report does not count."""
        return self.report_interval_s * self.report_timeout_intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSettings:
    """How the number of replicas is computed from the load. Windows, steps and objectives are each model's own."""

    utilization_max_ratio: float = 0.8
    """Share of a replica's time that may be taken by work, 0..1; with a TTFT objective the share is lower where
    waiting would miss it."""
    utilization_min_ratio: float = 0.4
    """The share that is used where the objective cannot be met at any, 0..1: one prompt alone takes longer. More
    replicas would not help."""
    batch_max: float = 256
    """Most requests decoded together by one replica; vLLM's own default limit."""
    prompt_tokens_unknown: float = 1024
    """Prompt length where rates do not tell it."""
    least_reporting_ratio: float = 0.5
    """The load is unknown when fewer of the workers report, 0..1."""
    queue_wait_s: float = 5.0
    """A queue that takes longer than this is too long where there is no TTFT objective."""
    queue_wait_objective_ratio: float = 0.5
    """Share of the TTFT objective that may be spent in the queue, 0..1."""
    queue_drain_s: float = 60.0
    """What waits should be gone in this time, beside the traffic that comes."""
    queue_per_replica: float = 8.0
    """Waiting requests for which one replica is added where nothing tells how fast they are served."""
    kv_usage_max_ratio: float = 0.85
    """Share of the KV pools that may be in use, 0..1; above it servers begin to preempt."""
    preemptions_per_s: float = 0.1
    """Preemptions per second and replica that count as pressure."""
    busy_running: float = 4.0
    """Running requests per replica from which a missed objective is blamed on load. With fewer, a replica does
    little else, and more of them would not make it faster."""
    objective_step_ratio: float = 0.5
    """Most that a missed objective adds at once, as a share of the replicas, 0..1."""
    comfort_ratio: float = 0.7
    """Latencies at or below this share of their objectives, and an empty queue, prove that the replicas suffice,
    whatever the hardware profile says, 0..1."""
    learn_after_s: float = 90.0
    """What is seen so long without a break corrects the profile: longer than the window of the rates, so that they
    show the load that is there now."""
    correction_max: float = 5.0
    """Most by which the replicas that the profile asks for are raised by what was observed. There is no bound on
    lowering them: too few are noticed by queue and latencies."""
    regret_s: float = 1800.0
    """A scale-down that has to be taken back within this time, at no more load, was wrong and is remembered."""
    down_margin_ratio: float = 0.15
    """Share of capacity that must be left over after a scale-down, 0..1. Loads that move less than this around an edge
    do not change the number of replicas."""
    down_step_interval_s: float = 60.0
    """Time between two steps down: the rates' window, so that each step is seen before the next."""
    start_grace_s: float = 600.0
    """Replicas added last hold back further ones until they are Ready, at most this long. Loading 140 GB of weights at
    4 GB/s takes 35 s, pulling a first image and compiling minutes."""

    def __post_init__(self) -> None:
        check_numbers(self)
        for name in ("utilization_max_ratio", "utilization_min_ratio", "kv_usage_max_ratio", "queue_drain_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: expected a number above 0, got {getattr(self, name)}")
        if self.utilization_min_ratio > self.utilization_max_ratio:
            raise ValueError(
                f"utilization_min_ratio: expected at most utilization_max_ratio, {self.utilization_max_ratio}, "
                f"got {self.utilization_min_ratio}"
            )
        if self.batch_max < 1 or self.prompt_tokens_unknown < 1 or self.queue_per_replica <= 0:
            raise ValueError(
                "batch_max, prompt_tokens_unknown, queue_per_replica: expected 1, 1 and above 0, got "
                f"{self.batch_max}, {self.prompt_tokens_unknown}, {self.queue_per_replica}"
            )
        if self.correction_max < 1:
            raise ValueError(f"correction_max: expected 1 or more, got {self.correction_max}")
        if self.down_margin_ratio >= 1:
            raise ValueError(f"down_margin_ratio: expected a number below 1, got {self.down_margin_ratio}")
