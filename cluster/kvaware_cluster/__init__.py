"""What is true in the cluster and how old that is: list+watch store, readers of raw objects, DCGM scrapes, writes."""

from kvaware_cluster.directory_source import DirectorySource
from kvaware_cluster.errors import (
    ClusterApiError,
    ConflictError,
    GoneError,
    NotFoundError,
    ThrottledError,
    WorkerError,
)
from kvaware_cluster.kubernetes_source import KubernetesSource
from kvaware_cluster.parse.block_groups import parse_block_group
from kvaware_cluster.parse.dcgm import parse_dcgm
from kvaware_cluster.parse.gpu_pools import AMD_GPU, NVIDIA_GPU, NVIDIA_GPU_SHARED, NVIDIA_MIG_PREFIX, is_gpu
from kvaware_cluster.parse.models import parse_model
from kvaware_cluster.parse.nodes import parse_node
from kvaware_cluster.parse.pods import parse_pod
from kvaware_cluster.parse.quotas import parse_quota
from kvaware_cluster.parse.reservations import parse_reservation, render_reservation
from kvaware_cluster.settings import DcgmSettings, KubernetesSettings, StoreSettings
from kvaware_cluster.source import (
    CUSTOM_KINDS,
    OBSERVED_KINDS,
    EventType,
    ExporterTarget,
    Kind,
    ListPage,
    Source,
    WatchEvent,
)
from kvaware_cluster.store import Listener, Store
from kvaware_cluster.table import Change
from kvaware_cluster.yaml_files import objects_in, objects_of, yaml_files
from kvaware_crds.quantity import parse_quantity

__all__ = [
    "AMD_GPU",
    "CUSTOM_KINDS",
    "NVIDIA_GPU",
    "NVIDIA_GPU_SHARED",
    "NVIDIA_MIG_PREFIX",
    "OBSERVED_KINDS",
    "Change",
    "ClusterApiError",
    "ConflictError",
    "DcgmSettings",
    "DirectorySource",
    "EventType",
    "ExporterTarget",
    "GoneError",
    "Kind",
    "KubernetesSettings",
    "KubernetesSource",
    "ListPage",
    "Listener",
    "NotFoundError",
    "Source",
    "Store",
    "StoreSettings",
    "ThrottledError",
    "WatchEvent",
    "WorkerError",
    "is_gpu",
    "objects_in",
    "objects_of",
    "parse_block_group",
    "parse_dcgm",
    "parse_model",
    "parse_node",
    "parse_pod",
    "parse_quantity",
    "parse_quota",
    "parse_reservation",
    "render_reservation",
    "yaml_files",
]
