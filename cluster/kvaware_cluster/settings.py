"""Settings of this room. Durations are in seconds.

The bounds are held where settings are read from outside (by pydantic, in the room above), not when a test builds them.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

__all__ = [
    "DcgmSettings",
    "KubernetesSettings",
    "KvEventSettings",
    "StoreSettings",
    "WorkerScrapeSettings",
]

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Labels = Annotated[tuple[tuple[str, str], ...], Field(min_length=1)]
"""At least one: the empty set would be on every pod."""
LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
Namespace = Annotated[str, Field(min_length=1, max_length=63)]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """How KubernetesSource talks to the API server."""

    page_size: Annotated[int, Field(ge=1, le=10_000)] = 500
    """Objects per list page: 500 pods are some 2.5 MB, 10 ms of parsing; client-go uses the same."""
    request_timeout_s: Seconds = 15.0
    """One list page, one read. A page of 500 takes well under a second from a healthy server."""
    write_timeout_s: Seconds = 4.0
    """One binding or patch: below kube-scheduler's default httpTimeout of 5 s, since bind answers inside it."""
    watch_timeout_s: Annotated[float, Field(ge=1, le=3600, allow_inf_nan=False)] = 30.0
    """After this the server closes a watch and it is opened again. A quiet kind's age reaches this figure, so what
    counts as stale must be well above it."""
    watch_jitter_ratio: Ratio = 0.1
    """Each watch's time-out is drawn within this share around ``watch_timeout_s``: they do not all end at once."""
    watch_grace_s: Seconds = 10.0
    """A watch that the server did not close this long after its time-out is dead (a lost peer sends no reset)."""
    exporter_timeout_s: Seconds = 3.0
    """One scrape."""
    exporter_body_bytes: Annotated[int, Field(ge=1024, le=2**30)] = 4 * 2**20
    """A longer exporter answer is an error. 8 GPUs with all default fields are some 60 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmSettings:
    """How foreign HBM use is scraped."""

    enabled: bool = True
    """False: nobody is scraped, and foreign use is unknown everywhere."""
    selectors: tuple[Labels, ...] = (
        (("app", "nvidia-dcgm-exporter"),),
        (("app.kubernetes.io/name", "dcgm-exporter"),),
    )
    """Label sets; a pod with all labels of one of them is an exporter. Defaults: GPU operator, exporter's own chart."""
    namespaces: tuple[Namespace, ...] = (
        "dcgm-exporter",
        "gpu-operator",
        "gpu-operator-resources",
        "kube-system",
        "monitoring",
        "nvidia-dcgm-exporter",
        "nvidia-gpu-operator",
    )
    """Where exporters are believed. Whoever may create pods in one of these namespaces can say what is in use on a
    node, so name only those that no tenant writes to. Defaults: the usual places of GPU operator and exporter. Empty:
    any namespace, for clusters whose users all trust each other."""
    port: Port = 9400
    """Of the exporters' ``/metrics``; 9400 is the exporter's own default."""
    interval_s: Seconds = 15.0
    """Per node. The exporter itself collects every 30 s unless told otherwise."""
    interval_jitter_ratio: Ratio = 0.2
    """Share of the interval by which each scrape is moved, so that nodes spread out."""
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 16
    """Scrapes at a time. A dead exporter takes one place for the time-out."""
    missed_limit: Annotated[int, Field(ge=1, le=1000)] = 3
    """So many failed scrapes in a row: a second exporter of the node is asked, or its use is unknown."""
    first_round_limit_s: Seconds = 30.0
    """The view counts as complete when every exporter was tried once, or after this time."""
    slow_after_misses_interval_s: Seconds = 60.0
    """An exporter beyond ``missed_limit`` is tried this seldom, so that dead ones do not starve the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerScrapeSettings:
    """How the model servers' ``/metrics`` are scraped."""

    enabled: bool = True
    """False: nobody is scraped, and of the workers is known what their heartbeats tell."""
    interval_s: Seconds = 5.0
    """Per pod. One scrape of a vLLM takes 1 to 2 ms of CPU, so 1,000 pods some 30 % of a core. Rates and percentiles
    need several scrapes in their window."""
    interval_jitter_ratio: Ratio = 0.2
    """Share of the interval by which each scrape is moved, so that pods spread out."""
    timeout_s: Seconds = 3.0
    """One scrape, to the end of its body. A vLLM under load answers within some 0.1 s."""
    body_bytes: Annotated[int, Field(ge=1024, le=2**30)] = 4 * 2**20
    """A longer answer is an error. vLLM 0.32 writes 58 kB for each data-parallel rank."""
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 64
    """Scrapes at a time. A dead server takes one place for the time-out. While others wait, a namespace takes no more
    places than they do."""
    missed_limit: Annotated[int, Field(ge=1, le=1000)] = 3
    """After so many failed scrapes, less half of the good ones, a server counts as dead and is asked seldom: soon when
    it never answers, in time when it misses more than a third."""
    slow_after_misses_interval_s: Seconds = 30.0
    """Between two scrapes of a dead server, so that dead ones do not starve the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventSettings:
    """How the KV events of model servers are followed, where ``workers.ports.kvEvents`` says where they are."""

    enabled: bool = True
    """False: nobody is followed, and what a worker holds is estimated from the requests that it got. Each worker that
    is followed takes some four file descriptors."""
    slice_blocks: Annotated[int, Field(ge=1, le=65_536)] = 32
    """Blocks whose events are applied in one turn of the loop that answers requests, all workers together. An event of
    one block takes some 12 us, read and applied, one of 32 blocks some 100 us: a request waits 0.4 ms at most."""
    high_water_batches: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Batches of a worker that wait here; some 5 kB each. Beyond it they wait with the worker, which keeps 100,000
    unless told otherwise and drops what comes then."""
    frame_bytes: Annotated[int, Field(ge=1024, le=2**30)] = 8 * 2**20
    """A worker that sends more in one batch is disconnected. A report of a million tokens is some 5 MB."""
    replay_wait_s: Seconds = 5.0
    """All the time that is waited for a worker in one replay of lost events; vLLM answers within 0.1 s."""
    replay_pause_s: Seconds = 60.0
    """A worker that did not answer is not asked again for this long: after a gap its blocks are forgotten at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How the store keeps its view."""

    backoff_first_s: Seconds = 0.2
    """Wait after the first failure; doubles with each further one."""
    backoff_max_s: Seconds = 10.0
    """Longest wait: a kind that appears late is in force within this time."""
    retry_after_max_s: Seconds = 60.0
    """Longest Retry-After that is followed."""
    watch_min_s: Seconds = 1.0
    """A watch that ends sooner without having brought anything counts as a failure, else it would spin."""
    quota_removal_hold_s: Seconds = 3.0
    """A TenantQuota that a watch or a list misses stays in force this long, until a later list confirms it. Whoever
    deletes the CRD deletes all quotas first, and only about 1.1 s later (measured on 1.37.2) is the kind gone and
    therefore unknown: without the hold every tenant would be unlimited in between."""
    rack_label: LabelKey = "topology.kubernetes.io/rack"
    """Kubernetes names no rack label; this is what many clusters use."""
    zone_label: LabelKey = "topology.kubernetes.io/zone"
    """The label that Kubernetes and the cloud providers set."""
    dcgm: DcgmSettings = DcgmSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoverySettings:
    """How long it is believed what kinds the API server serves."""

    ttl_s: Seconds = 300.0
    """A kind that can be scaled. One that disappears is noticed at once: its objects are answered 404."""
    absent_ttl_s: Seconds = 10.0
    """A kind that is not there, or cannot be scaled: when its CRD arrives, it can be within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadWatchSettings:
    """How the kinds that scaleTargetRefs name are watched."""

    kinds_max: Annotated[int, Field(ge=1, le=1000)] = 32
    """Kinds that are watched at a time. Specs can name any that the cluster serves; the scales of further ones are
    polled."""
    absent_again_s: Seconds = 60.0
    """A kind that is not served, or has no scale, is looked for this seldom. All of them together cost one list of the
    API versions, and one of the kinds of each version that is served."""
    backoff_first_s: Seconds = 1.0
    """Wait after the first failure; doubles with each further one."""
    backoff_max_s: Seconds = 60.0
    """Longest wait: a kind that may not be listed is tried this seldom."""
    retry_after_max_s: Seconds = 60.0
    """Longest Retry-After that is followed."""
    watch_min_s: Seconds = 1.0
    """A watch that ends sooner without having brought anything counts as a failure, else it would spin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderClientSettings:
    """How the extender's ``/v1`` is asked."""

    timeout_s: Seconds = 5.0
    """One question with its answer. A load takes the extender well under a millisecond, a headroom some 10 ms."""
    connect_timeout_s: Seconds = 2.0
    """Opening a connection, a part of ``timeout_s``."""
    connections: Annotated[int, Field(ge=1, le=1000)] = 8
    """Open at a time, and kept: 100 questions in 10 s need one."""
    body_bytes: Annotated[int, Field(ge=1024, le=2**30)] = 16 * 2**20
    """A longer answer is an error. 10,000 workers are some 8 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """When a lease is renewed, and given up; the figures are those of Kubernetes' own components."""

    duration_s: Annotated[float, Field(ge=1, le=3600, allow_inf_nan=False)] = 15.0
    """Another may take the lease when it was not renewed for this long. Written into the Lease in whole seconds."""
    renew_deadline_s: Seconds = 10.0
    """Who leads and could not renew for this long stops; the rest of ``duration_s`` is for stopping."""
    retry_s: Seconds = 2.0
    """Between two tries to take or to renew it; up to a fifth longer, so that candidates spread."""
