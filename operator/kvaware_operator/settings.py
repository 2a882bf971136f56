"""What can be tuned in the operator. Read once at start (``load_settings``), passed down as arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from kvaware_cluster import (
    ExtenderClientSettings,
    KubernetesSettings,
    LeaseTiming,
    StoreSettings,
    WorkloadWatchSettings,
)
from kvaware_cluster.load import load_settings as load
from kvaware_engine import ScalingSettings

__all__ = ["LeaseSettings", "OperatorSettings", "QueueSettings", "load_settings"]

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """Only one operator acts; others wait for its lease."""

    enabled: bool = True
    """False: nobody else is looked for. For a single operator outside a cluster."""
    name: Annotated[str, Field(min_length=1, max_length=253)] = "kvaware-operator"
    """Of the Lease object."""
    namespace: Annotated[str, Field(max_length=63)] = ""
    """Where the Lease lies. Empty: the pod's own namespace, else ``default``."""
    timing: LeaseTiming = field(default_factory=LeaseTiming)
    """When it is renewed, and given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """How objects are looked at."""

    workers: Count = 8
    """InferenceModels that are looked at side by side. Each may wait for the API server or the extender."""
    backoff_first_s: Seconds = 1.0
    """An object that cannot be brought to its spec is looked at again after this time, twice as long after each
    further failure."""
    backoff_max_s: Seconds = 120.0
    """Longest wait between two looks at an object that fails."""
    timeout_s: Seconds = 60.0
    """One look at one object; beyond it it counts as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """All of the operator's settings."""

    host: str = "127.0.0.1"
    """Address of the listener for probes and metrics. In a pod, the pod's own."""
    port: Port = 8902
    """Port of that listener; 0 takes a free one and logs it."""
    extender_url: Annotated[str, Field(pattern=r"^https?://[^\s/]+(/[^\s]*)?$")] = "http://127.0.0.1:8900"
    """Where the extender's ``/v1`` API listens: loads, headroom, tenants and workers come from there."""
    poll_s: Seconds = 10.0
    """Each scaled model's load is asked for this often, and the use of all tenants."""
    load_grace_s: Seconds = 30.0
    """A load that could not be had for this long makes the condition ``Ready`` Unknown. Nothing is scaled meanwhile."""
    status_interval_s: Seconds = 10.0
    """An object's status is written at most once in this time."""
    scale_max_age_s: Seconds = 3600.0
    """A workload's scale that no watch reported as changed is read again after this time."""
    unwatched_scale_max_age_s: Seconds = 60.0
    """The same where the workload's kind is not watched: no right to it, or one too many (``workload_watches``)."""
    max_view_age_s: Seconds = 90.0
    """A kind that was not proven fresh for this long is stale: ``/readyz`` fails, and nothing is scaled by it."""
    settle_s: Seconds = 3.0
    """After taking the lead: so long is waited for kinds that are not listed yet, so that what is only not known yet
    is not told as unknown."""
    stop_timeout_s: Seconds = 5.0
    """When the process ends: time for what is being written."""
    hardware_profiles: str = ""
    """A YAML file of hardware profiles of your own, beside those that are shipped. Empty: none."""
    kopf: bool = True
    """Whether kopf's watches run beside the store's own. Both only say which object to look at."""
    kopf_after_s: Seconds = 60.0
    """kopf's watches begin when every object was looked at once, and after this time at the latest."""
    lease: LeaseSettings = field(default_factory=LeaseSettings)
    """Which of several operators acts."""
    queue: QueueSettings = field(default_factory=QueueSettings)
    """How objects are looked at."""
    scaling: ScalingSettings = field(default_factory=ScalingSettings)
    """How many replicas a load asks for."""
    extender: ExtenderClientSettings = field(default_factory=ExtenderClientSettings)
    """How the extender is asked."""
    workload_watches: WorkloadWatchSettings = field(default_factory=WorkloadWatchSettings)
    """How workloads are watched, so that nobody has to poll their scales."""
    store: StoreSettings = field(default_factory=StoreSettings)
    """How the cluster is watched. Its exporters are the extender's business: ``dcgm`` changes nothing here."""
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    """How the API server is called."""


def load_settings(path: Path | None, environ: Mapping[str, str]) -> OperatorSettings:
    """Read the settings. Raises: ConfigError that names what is wrong. Reads a file: not for the event loop."""
    return load(OperatorSettings, path, environ)
