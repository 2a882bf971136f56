"""What can be tuned in the engine. Bandwidths are nominal figures of common hardware, to be replaced by profiles."""

from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any

__all__ = ["EngineSettings", "HbmSettings", "LinkSettings", "PodCostSettings"]


def _check(settings: Any) -> None:
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
        _check(self)


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
        _check(self)


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
        _check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """All of the engine's settings."""

    scheduler_name: str = "kvaware-scheduler"
    """Pods with this ``schedulerName`` that ask for a GPU are ours."""
    intent_ttl_s: float = 10.0
    """How long the guess that a pod goes to its first choice is kept without a bind."""
    weights_ttl_s: float = 3600.0
    """How long a node is believed to still have the weights of a model after its last pod left."""
    use_max_age_s: float = 300.0
    """Older exporter figures count as no exporter."""
    no_exporter_confidence_ratio: float = 0.7
    """How far the state of a node without an exporter is believed, 0..1."""
    hbm: HbmSettings = field(default_factory=HbmSettings)
    links: LinkSettings = field(default_factory=LinkSettings)
    pod_costs: PodCostSettings = field(default_factory=PodCostSettings)

    def __post_init__(self) -> None:
        if not self.scheduler_name:
            raise ValueError("scheduler_name: expected a name, got an empty string")
        _check(self)
