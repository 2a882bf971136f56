"""What can be tuned in the extender. Read once at start (``load_settings``), passed down as arguments."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from kvaware_cluster import KubernetesSettings, KvEventSettings, StoreSettings, WorkerScrapeSettings
from kvaware_engine import EngineSettings, WorkerSettings
from kvaware_engine.requests.settings import RequestSettings

__all__ = ["ExtenderSettings", "GatewaySettings", "HeartbeatSettings", "StaleView", "WakeUpSettings"]

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class StaleView(StrEnum):
    """What our pods are told while the view of the cluster is older than ``max_view_age_s``."""

    REFUSE = "refuse"
    ADMIT = "admit"


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeUpSettings:
    """Bringing refused pods back when they could be placed."""

    debounce_s: Seconds = 0.1
    """Changes of the cluster come in bursts (a roll-out, a re-list); refused pods are looked at once per burst."""
    per_s: Seconds = 20.0
    """Writes to pods per second, on average; kube-scheduler starts some 100 to 200 pods a second at best."""
    burst: Count = 50
    """Writes that may go out at once after a quiet time."""
    max_pods: Count = 10_000
    """Refused pods that are remembered; beyond it the longest refused are forgotten and wait for kube-scheduler's own
    retry after 5 minutes. About 1 KB each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSettings:
    """Whose heartbeats are taken. A worker signs with a bearer token; without one it is refused."""

    token_file: str = ""
    """A file of tokens, one per line: whoever has one may speak for every worker. It is read again when it changes.
    Needed where there is no cluster that could review tokens. Empty: none."""
    review_tokens: bool = True
    """Whether the API server is asked whose a token is (TokenReview): a pod's own token speaks for its own workers."""
    audiences: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=253)], ...], Field(max_length=16)] = (
        "kvaware",
    )
    """For whom a reviewed token must be meant, one of these at least. Pods need a projected token for it, which is of
    no use anywhere else: heartbeats are plain HTTP. Empty: for the API server itself, as the token that every pod gets;
    whoever reads such a heartbeat can do in the cluster what the pod may."""
    service_accounts: tuple[Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+$")], ...] = ()
    """Accounts, each ``namespace/name``, that may speak for every worker, such as that of a gateway."""
    remember_s: Seconds = 120.0
    """How long the API server's word on a good token holds: as long as the kubelet trusts it."""
    remember_bad_s: Seconds = 5.0
    """The same for a token that nobody knows."""
    remembered: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    """Tokens that are remembered, by their hash: one per pod that sends heartbeats. About 0.4 kB each."""
    min_interval_s: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 0.2
    """Least time between two heartbeats of a worker; one that comes sooner gets 429. They are taken in the loop that
    answers kube-scheduler. 0: none."""
    reviews_per_s: Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False)] = 50.0
    """Tokens that the API server is asked about per second, on average; beyond it the answer is 503. Each pod's token
    is asked about once in ``remember_s``: 1,000 pods need some 8. Tokens that are remembered are not affected."""
    review_burst: Annotated[int, Field(ge=2, le=1_000_000)] = 200
    """Tokens that may be asked about at once after a quiet time. The last half is kept for tokens that were good
    before, so that those who make up tokens do not shut out the workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Who asks where requests go (``/v1/placements``), and how much at once."""

    token_file: str = ""
    """A file of tokens, one per line, one for each gateway: who sends one may say for which tenant it asks (header
    ``x-kvaware-tenant``); a tenant's name after the token, and a blank, limits it to this one. It is read again when it
    changes. Empty: nobody may; requests are the default tenant's."""
    default_tenant: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    ] = "default"
    """Whose requests are that come without a token, or with one and no tenant."""
    max_body_bytes: Count = 16 * 1024 * 1024
    """Longer bodies of one demand get 413; a prompt of 2 million token ids has some 14 MB. They are read in the loop
    that answers kube-scheduler."""
    batch_max_body_bytes: Count = 32 * 1024 * 1024
    """The same of a batch."""
    frame_max_bytes: Count = 4 * 1024 * 1024
    """Longer frames close a stream."""
    streams_max: Annotated[int, Field(ge=1, le=100_000)] = 128
    """Streams that may be open at the same time; further ones get 503. Each may fill ``frameMaxBytes`` of
    memory: 512 MB in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderSettings:
    """All of the extender's settings."""

    scheduler_host: str = "127.0.0.1"
    """Address of the listener for kube-scheduler's verbs. Loopback, because whoever reaches bind can place pods."""
    scheduler_port: Port = 8901
    """Port of that listener; 0 takes a free one and logs it."""
    api_host: str = "127.0.0.1"
    """Address of the listener for ``/v1``, probes and metrics. In a pod, the pod's own."""
    api_port: Port = 8900
    """Port of that listener; 0 takes a free one and logs it."""
    stale_view: StaleView = StaleView.REFUSE
    """``refuse``: our pods wait while the view is stale. ``admit``: the last view is used. A kind that cannot be listed
    refuses in both: what is unknown is not unlimited. Pods that are not ours are never affected."""
    max_view_age_s: Seconds = 60.0
    """A kind that was not proven fresh for this long is stale. Watches are confirmed by bookmarks about once a minute
    in a quiet cluster, and by any event otherwise."""
    bind_timeout_s: Seconds = 3.0
    """A bind answers within this time. kube-scheduler gives up after its ``httpTimeout`` (5 s in our profile) and the
    answer needs the rest."""
    in_doubt_s: Seconds = 60.0
    """How long a binding whose answer was lost may still take effect: the API server's own limit for one request
    (``--request-timeout``, 1 minute). Until then the booking stays."""
    max_body_bytes: Count = 32 * 1024 * 1024
    """Longer request bodies get 413. 1,000 whole Node objects are about 24 MB (5,000: 117 MB, kubernetes#141781); names
    only, 5,000 nodes are 0.2 MB."""
    repeat_cache_bytes: Count = 32 * 1024 * 1024
    """Memory for replies to filter that may be asked for again, the requests' bodies included."""
    decision_log: str = "-"
    """Where the record of each decision goes: a path, ``-`` for standard output, ``off`` for nowhere."""
    decision_log_queue: Count = 10_000
    """Records that wait for the writing thread; beyond it they are dropped and counted."""
    hardware_profiles: str = ""
    """A YAML file of hardware profiles of your own, beside those that are shipped. Empty: none."""
    wake_up: WakeUpSettings = field(default_factory=WakeUpSettings)
    """Bringing refused pods back."""
    heartbeat: HeartbeatSettings = field(default_factory=HeartbeatSettings)
    """Whose heartbeats are taken."""
    workers: WorkerSettings = field(default_factory=WorkerSettings)
    """How far reports of workers are believed."""
    worker_scrape: WorkerScrapeSettings = field(default_factory=WorkerScrapeSettings)
    """How workers are scraped."""
    kv_events: KvEventSettings = field(default_factory=KvEventSettings)
    """How workers' KV events are followed."""
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    """Who asks where requests go."""
    requests: RequestSettings = field(default_factory=RequestSettings)
    """How requests are placed."""
    engine: EngineSettings = field(default_factory=EngineSettings)
    """How decisions are made."""
    store: StoreSettings = field(default_factory=StoreSettings)
    """How the cluster is watched."""
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    """How the API server is called."""

    def __post_init__(self) -> None:
        if self.worker_scrape.enabled and self.worker_scrape.interval_s > self.workers.report_interval_s:
            raise ValueError(
                "workers.reportIntervalS: expected at least workerScrape.intervalS, "
                f"{self.worker_scrape.interval_s:g}, got {self.workers.report_interval_s:g}: healthy workers would "
                "drop out between two scrapes"
            )
