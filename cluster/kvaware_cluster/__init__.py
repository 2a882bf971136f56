"""What is true in the cluster and how old that is: list+watch store, readers of raw objects, DCGM scrapes, writes."""

from kvaware_cluster.directory_source import DirectorySource
from kvaware_cluster.discovery import Discovery, ServedKind
from kvaware_cluster.errors import (
    ClusterApiError,
    ConflictError,
    GoneError,
    LeaseLostError,
    NotFoundError,
    ScaleTargetError,
    TaskEndedError,
    ThrottledError,
    WorkerError,
)
from kvaware_cluster.extender_client import ExtenderClient
from kvaware_cluster.kubernetes_api import KubernetesApi
from kvaware_cluster.kubernetes_http import KubernetesHttp
from kvaware_cluster.kubernetes_source import KubernetesSource
from kvaware_cluster.kv_events import KvFollowers
from kvaware_cluster.kv_words import BlockSink, GapResult, KvCounts, ReplayResult
from kvaware_cluster.lease import LeaderLease, new_identity
from kvaware_cluster.parse.block_groups import parse_block_group
from kvaware_cluster.parse.dcgm import parse_dcgm
from kvaware_cluster.parse.gpu_pools import AMD_GPU, NVIDIA_GPU, NVIDIA_GPU_SHARED, NVIDIA_MIG_PREFIX, is_gpu
from kvaware_cluster.parse.heartbeats import Heartbeat, parse_heartbeat
from kvaware_cluster.parse.kv_events import PassedOver, parse_kv_events
from kvaware_cluster.parse.models import parse_model
from kvaware_cluster.parse.nodes import parse_node
from kvaware_cluster.parse.pods import parse_pod
from kvaware_cluster.parse.quotas import parse_quota
from kvaware_cluster.parse.reservations import parse_reservation, render_reservation
from kvaware_cluster.parse.worker_metrics import parse_worker_metrics
from kvaware_cluster.parse.worker_pods import parse_worker_pod
from kvaware_cluster.profiles import load_profiles
from kvaware_cluster.settings import (
    DcgmSettings,
    DiscoverySettings,
    ExtenderClientSettings,
    KubernetesSettings,
    KvEventSettings,
    LeaseTiming,
    StoreSettings,
    WorkerScrapeSettings,
    WorkloadWatchSettings,
)
from kvaware_cluster.source import (
    CUSTOM_KINDS,
    OBSERVED_KINDS,
    EventType,
    ExporterTarget,
    Kind,
    ListPage,
    Source,
    TokenIdentity,
    WatchEvent,
)
from kvaware_cluster.store import Listener, Store
from kvaware_cluster.table import Change
from kvaware_cluster.worker_membership import KvEventTarget, ScrapeTarget, WorkerMembership, split_worker
from kvaware_cluster.worker_scraper import WorkerScraper
from kvaware_cluster.workload_watches import WorkloadWatches
from kvaware_cluster.workloads import (
    Autoscaler,
    ClusterApi,
    CustomResource,
    Owner,
    Scale,
    ScaleTarget,
    WorkerPod,
    WorkloadKind,
)
from kvaware_cluster.yaml_files import objects_in, objects_of, yaml_files
from kvaware_crds.quantity import parse_quantity

__all__ = [
    "AMD_GPU",
    "CUSTOM_KINDS",
    "NVIDIA_GPU",
    "NVIDIA_GPU_SHARED",
    "NVIDIA_MIG_PREFIX",
    "OBSERVED_KINDS",
    "Autoscaler",
    "BlockSink",
    "Change",
    "ClusterApi",
    "ClusterApiError",
    "ConflictError",
    "CustomResource",
    "DcgmSettings",
    "DirectorySource",
    "Discovery",
    "DiscoverySettings",
    "EventType",
    "ExporterTarget",
    "ExtenderClient",
    "ExtenderClientSettings",
    "GapResult",
    "GoneError",
    "Heartbeat",
    "Kind",
    "KubernetesApi",
    "KubernetesHttp",
    "KubernetesSettings",
    "KubernetesSource",
    "KvCounts",
    "KvEventSettings",
    "KvEventTarget",
    "KvFollowers",
    "LeaderLease",
    "LeaseLostError",
    "LeaseTiming",
    "ListPage",
    "Listener",
    "NotFoundError",
    "Owner",
    "PassedOver",
    "ReplayResult",
    "Scale",
    "ScaleTarget",
    "ScaleTargetError",
    "ScrapeTarget",
    "ServedKind",
    "Source",
    "Store",
    "StoreSettings",
    "TaskEndedError",
    "ThrottledError",
    "TokenIdentity",
    "WatchEvent",
    "WorkerError",
    "WorkerMembership",
    "WorkerPod",
    "WorkerScrapeSettings",
    "WorkerScraper",
    "WorkloadKind",
    "WorkloadWatchSettings",
    "WorkloadWatches",
    "is_gpu",
    "load_profiles",
    "new_identity",
    "objects_in",
    "objects_of",
    "parse_block_group",
    "parse_dcgm",
    "parse_heartbeat",
    "parse_kv_events",
    "parse_model",
    "parse_node",
    "parse_pod",
    "parse_quantity",
    "parse_quota",
    "parse_reservation",
    "parse_worker_metrics",
    "parse_worker_pod",
    "render_reservation",
    "split_worker",
    "yaml_files",
]
