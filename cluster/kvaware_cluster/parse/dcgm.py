"""The text of NVIDIA's DCGM exporter → HBM in use on each GPU or MIG slice of a node."""

import math
import re
from dataclasses import dataclass, field
from sys import intern
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from kvaware_cluster.parse.bounds import MAX_DEVICE_BYTES, MAX_DEVICES
from kvaware_cluster.parse.mig import mig_profile
from kvaware_crds.errors import WireError
from kvaware_engine.observations import GpuUse, NodeUse, ObjectKey

__all__ = ["parse_dcgm"]

USED: Final = "DCGM_FI_DEV_FB_USED"
FREE: Final = "DCGM_FI_DEV_FB_FREE"
UTILIZATION: Final = "DCGM_FI_DEV_GPU_UTIL"
_WANTED: Final = re.compile(rf"^(?:{USED}|{FREE}|{UTILIZATION})\b.*$", re.MULTILINE)
"""Lines worth parsing. A default exporter writes some 25 fields per GPU and the parser takes 20 µs a line: of 8 GPUs'
4 ms this leaves 0.6 ms."""
MAX_MIB: Final = MAX_DEVICE_BYTES >> 20
"""DCGM's blanks (2^63-16, 2^31-16 and their neighbours: not supported, not found) are above it or negative."""
UNKNOWN_PROFILE: Final = "unknown"
"""Of a slice whose profile is not told: it must not pass for a whole GPU."""


@dataclass(slots=True)
class _Device:
    index: int
    uuid: str
    profile: str | None
    used_bytes: int | None = None
    free_bytes: int | None = None
    utilization_ratio: float | None = None
    shows_memory: bool = False
    """Whether a line about its memory was there, readable or blank."""
    pods: set[ObjectKey] = field(default_factory=set)


def parse_dcgm(text: str, *, node: str, observed_at_s: float) -> NodeUse:
    """Read one scrape.

    A MIG slice's UUID is its GPU's with ``/<GPU instance>`` behind it: the exporter gives slices none of their own.
    With time-slicing the exporter may repeat a GPU for each pod on it: then no single pod is named.

    Args:
        text: The exposition text; other fields are passed over.
        node: Where it came from.
        observed_at_s: Monotonic, of the moment before the scrape: what was deleted later may still be in it.
    Raises: WireError when the text cannot be read or shows no GPU's memory at all.
    """
    devices: dict[tuple[str, str, str], _Device] = {}
    try:
        for family in text_string_to_metric_families("\n".join(_WANTED.findall(text)) + "\n"):
            for sample in family.samples:
                _take(devices, sample.name, sample.labels, float(sample.value))
    except (ValueError, IndexError, KeyError) as error:  # what the parser raises on malformed lines
        raise WireError(f"exporter of node {node}: expected Prometheus text, a line could not be read") from error
    devices = {key: device for key, device in devices.items() if device.shows_memory}
    if not devices:
        raise WireError(f"exporter of node {node}: expected {USED} of at least one GPU, got none")
    ordered = sorted(devices.items(), key=lambda item: (item[1].index, item[0]))
    return NodeUse(node=node, gpus=tuple(_use(device) for _, device in ordered), observed_at_s=observed_at_s)


def _take(devices: dict[tuple[str, str, str], _Device], name: str, labels: dict[str, str], value: float) -> None:
    index = labels.get("gpu", "")
    if not (index.isascii() and index.isdecimal() and len(index) < 6) or len(devices) >= MAX_DEVICES:
        return  # a line of a switch or a CPU; not a GPU
    uuid, instance = labels.get("UUID", ""), labels.get("GPU_I_ID", "")
    device = devices.setdefault(
        (index, uuid, instance),
        _Device(
            index=int(index),
            uuid=intern(f"{uuid}/{instance}" if instance else uuid),
            profile=_profile(labels.get("GPU_I_PROFILE", ""), instance),
        ),
    )
    if name == UTILIZATION:
        device.utilization_ratio = value / 100 if 0 <= value <= 100 else None
        return
    device.shows_memory = True
    size = None if math.isnan(value) or not 0 <= value <= MAX_MIB else round(value * 2**20)
    if name == USED:
        device.used_bytes = size
    else:
        device.free_bytes = size
    pod = labels.get("pod")
    if pod:
        device.pods.add(ObjectKey(labels.get("namespace", ""), pod))


def _profile(text: str, instance: str) -> str | None:
    """As the engine spells it; None for a whole GPU."""
    return intern(mig_profile(text) or UNKNOWN_PROFILE) if text or instance else None


def _use(device: _Device) -> GpuUse:
    return GpuUse(
        index=device.index,
        uuid=device.uuid,
        used_bytes=device.used_bytes,
        free_bytes=device.free_bytes,
        mig_profile=device.profile,
        pod=next(iter(device.pods)) if len(device.pods) == 1 else None,
        utilization_ratio=device.utilization_ratio,
    )
