"""Which GPUs a node offers, from the labels of its vendor's feature discovery and the kubelet's own figures.

Labels say what the devices are (count, memory, sharing); ``status`` says how many the kubelet hands out now. A label
that cannot be read becomes a sentence in ``problems`` and its figure unknown, never an exception.
Source: NVIDIA GPU feature discovery (``internal/lm`` of its device plugin), the node labeller of AMD's device plugin.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import Any, Final

from kvaware_cluster.parse.bounds import MAX_DEVICE_BYTES, MAX_DEVICES, MAX_REPLICAS
from kvaware_cluster.parse.mig import mig_profile
from kvaware_crds.errors import WireError
from kvaware_crds.quantity import parse_quantity
from kvaware_engine.observations import GpuClass, GpuPool

__all__ = ["AMD_GPU", "NVIDIA_GPU", "NVIDIA_GPU_SHARED", "NVIDIA_MIG_PREFIX", "gpu_pools", "is_gpu"]

NVIDIA_GPU: Final = "nvidia.com/gpu"
NVIDIA_GPU_SHARED: Final = "nvidia.com/gpu.shared"
NVIDIA_MIG_PREFIX: Final = "nvidia.com/mig-"
AMD_GPU: Final = "amd.com/gpu"

_WHOLE_GPUS: Final = frozenset({NVIDIA_GPU, NVIDIA_GPU_SHARED, AMD_GPU})
_AMD_SIZE: Final = re.compile(r"([0-9]{1,9})(M|G|T)i?B?")
_AMD_POWERS: Final = {"M": 20, "G": 30, "T": 40}  # the labeller divides bytes by powers of 1024 and writes "G"


def is_gpu(resource: str) -> bool:
    """Whether a resource of pods and nodes is GPUs: whole, shared or MIG slices."""
    return resource in _WHOLE_GPUS or resource.startswith(NVIDIA_MIG_PREFIX)


def gpu_pools(
    *, labels: Mapping[str, str], capacity: Mapping[str, Any], allocatable: Mapping[str, Any]
) -> tuple[tuple[GpuPool, ...], tuple[str, ...]]:
    """The node's pools, sorted by resource, and what could not be read.

    Args:
        labels: The node's labels.
        capacity: ``status.capacity``: quantities by resource.
        allocatable: ``status.allocatable``.
    """
    reader = _Reader(labels, capacity, allocatable)
    pools = [*_nvidia_mig_mixed(reader)]
    whole = _nvidia_whole(reader, mixed_slices=bool(pools))
    pools += [pool for pool in (whole, _amd(reader)) if pool is not None]
    _report_unexplained(reader, pools)
    return tuple(sorted(pools, key=lambda pool: pool.resource)), tuple(reader.problems)


@dataclass(slots=True)
class _Reader:
    """Labels and status of one node, and the sentences about what was wrong with them."""

    labels: Mapping[str, str]
    capacity: Mapping[str, Any]
    allocatable: Mapping[str, Any]
    problems: list[str] = field(default_factory=list)

    def number(self, label: str, *, unit: str, most: int, expected: bool = False) -> int | None:
        """A label's whole number; None when it is absent (a problem if ``expected``) or malformed."""
        text = self.labels.get(label)
        if text is None:
            if expected:
                self.problems.append(f"label {label}: expected {unit}, the label is missing")
            return None
        # isascii: isdecimal alone also takes Arabic-Indic digits; 10 digits keep int() small
        if text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= most:
            return int(text)
        self.problems.append(f"label {label}: expected {unit}, a whole number up to {most}, got {text[:64]!r}")
        return None

    def memory_bytes(self, label: str) -> int | None:
        """A label in MiB per device."""
        mib = self.number(label, unit="MiB of memory per device", most=MAX_DEVICE_BYTES >> 20, expected=True)
        if mib == 0:
            self.problems.append(f"label {label}: expected MiB of memory per device above 0, got '0'")
            return None
        return None if mib is None else mib * 2**20

    def offered(self, resource: str) -> int | None:
        """What the kubelet hands out now; None when it does not list the resource."""
        return self._amount(self.allocatable, "allocatable", resource)

    def built_in(self, resource: str) -> int | None:
        """What the node has, unhealthy devices included."""
        amount = self._amount(self.capacity, "capacity", resource)
        return self.offered(resource) if amount is None else amount

    def _amount(self, amounts: Mapping[str, Any], what: str, resource: str) -> int | None:
        value = amounts.get(resource)
        if value is None:
            return None
        try:
            amount = parse_quantity(value)
        except WireError:
            amount = -1
        if 0 <= amount <= MAX_DEVICES * MAX_REPLICAS:
            return amount
        sentence = f"{what} {resource}: expected a count of devices, got {str(value)[:64]!r}"
        if sentence not in self.problems:
            self.problems.append(sentence)
        return 0  # listed but unreadable: nothing that can be handed out


def _nvidia_whole(reader: _Reader, *, mixed_slices: bool) -> GpuPool | None:
    """``nvidia.com/gpu``: whole, shared, or (MIG strategy single) slices under the name of whole GPUs."""
    labels = reader.labels
    product = labels.get("nvidia.com/gpu.product", "")
    if product.endswith("-MIG-INVALID"):
        # GPU feature discovery writes this, with counts of 0, when mig.strategy=single meets a mixed layout
        reader.problems.append(
            f"label nvidia.com/gpu.product: expected one MIG layout on all GPUs (mig.strategy=single), got {product!r}"
        )
        return None
    labelled = "nvidia.com/gpu.count" in labels
    listed = NVIDIA_GPU in reader.allocatable or NVIDIA_GPU_SHARED in reader.allocatable
    if not labelled and not listed:
        return None
    count = reader.number("nvidia.com/gpu.count", unit="GPUs", most=MAX_DEVICES)
    replicas = reader.number("nvidia.com/gpu.replicas", unit="replicas per GPU", most=MAX_REPLICAS)
    strategy = labels.get("nvidia.com/gpu.sharing-strategy", "none")
    suffixed = product.endswith("-SHARED")
    shared = (replicas or 0) > 1 or strategy not in {"none", ""} or suffixed or bool(reader.offered(NVIDIA_GPU_SHARED))
    resource = _whole_resource(reader, shared=shared, suffixed=suffixed)
    offered, built_in = reader.offered(resource), reader.built_in(resource)
    if mixed_slices:
        # gpu.count also counts the GPUs that are cut into slices: only the kubelet knows how many whole ones are left
        offered, built_in = offered or 0, built_in or 0
    each = _replicas(replicas, shared=shared, count=count, built_in=built_in)
    devices = -(-(built_in or 0) // each) if count is None else count
    if mixed_slices:
        devices = min(devices, -(-(built_in or 0) // each))
    profile = _single_profile(labels, product.removesuffix("-SHARED"))
    return _pool(
        reader,
        resource=resource,
        gpu_class=GpuClass.SHARED if shared else GpuClass.EXCLUSIVE if profile is None else GpuClass.PARTITION,
        devices=devices,
        replicas=each,
        offered=offered,
        memory_label="nvidia.com/gpu.memory",
        product=product,
        profile=profile,
    )


def _single_profile(labels: Mapping[str, str], product: str) -> str | None:
    """Strategy single: the profile of the slices that are called GPUs, empty when the product does not tell it."""
    if labels.get("nvidia.com/mig.strategy") != "single":
        return None
    _, cut, profile = product.rpartition("-MIG-")
    # the label tells a slice's part of its GPU, so only slices have it: a product can be renamed
    return mig_profile(profile) if cut else "" if "nvidia.com/gpu.slices.gi" in labels else None


def _replicas(labelled: int | None, *, shared: bool, count: int | None, built_in: int | None) -> int:
    """Pods per device: as labelled, or worked out where only the kubelet's figure shows that devices are shared."""
    if labelled is None and shared and count and built_in:
        return max(1, -(-built_in // count))
    return max(1, labelled or 0)


def _pool(
    reader: _Reader,
    *,
    resource: str,
    gpu_class: GpuClass,
    devices: int,
    offered: int | None,
    memory_label: str,
    product: str,
    profile: str | None,
    replicas: int = 1,
) -> GpuPool | None:
    """An NVIDIA pool; None where there is nothing, or where figures are absurd."""
    if devices == 0 and not offered:
        return None
    if not _sane(reader, resource, devices=devices, replicas=replicas):
        return None
    return GpuPool(
        resource=intern(resource),
        gpu_class=gpu_class,
        devices=devices,
        replicas=replicas,
        allocatable=_allocatable(reader, resource, offered, devices=devices, replicas=replicas),
        hbm_bytes=reader.memory_bytes(memory_label),
        product=intern(product.removesuffix("-SHARED")),
        mig_profile=None if profile is None else intern(profile),
    )


def _sane(reader: _Reader, resource: str, *, devices: int, replicas: int) -> bool:
    """Labels were held to their bounds one by one; what was worked out from the kubelet's figures is here."""
    if devices <= MAX_DEVICES and replicas <= MAX_REPLICAS:
        return True
    reader.problems.append(
        f"capacity {resource}: expected at most {MAX_DEVICES} devices with {MAX_REPLICAS} replicas, "
        f"got {devices} with {replicas}"
    )
    return False


def _whole_resource(reader: _Reader, *, shared: bool, suffixed: bool) -> str:
    """The device plugin marks sharing in the product (suffix -SHARED) or in the resource's name, never in both."""
    if not shared or suffixed:
        return NVIDIA_GPU
    if NVIDIA_GPU in reader.allocatable and NVIDIA_GPU_SHARED not in reader.allocatable:
        return NVIDIA_GPU
    return NVIDIA_GPU_SHARED


def _nvidia_mig_mixed(reader: _Reader) -> list[GpuPool]:
    """MIG strategy mixed: one resource per profile, ``nvidia.com/mig-1g.5gb``."""
    labelled = {
        name.removesuffix(".count")
        for name in reader.labels
        if name.startswith(NVIDIA_MIG_PREFIX) and name.endswith(".count")
    }
    listed = {
        name.removesuffix(".shared")
        for name in reader.allocatable
        if name.startswith(NVIDIA_MIG_PREFIX) and reader.built_in(name)
    }
    pools = []
    for name in sorted(labelled | listed):
        count = reader.number(f"{name}.count", unit="MIG slices", most=MAX_DEVICES)
        replicas = reader.number(f"{name}.replicas", unit="replicas per slice", most=MAX_REPLICAS)
        product = reader.labels.get(f"{name}.product", "")
        renamed = f"{name}.shared" in reader.allocatable
        resource = f"{name}.shared" if renamed else name
        built_in = reader.built_in(resource)
        shared = (replicas or 0) > 1 or renamed or product.endswith("-SHARED")
        each = _replicas(replicas, shared=shared, count=count, built_in=built_in)
        pool = _pool(
            reader,
            resource=resource,
            gpu_class=GpuClass.SHARED if shared else GpuClass.PARTITION,
            devices=-(-(built_in or 0) // each) if count is None else count,
            replicas=each,
            offered=reader.offered(resource),
            memory_label=f"{name}.memory",
            product=product,
            profile=mig_profile(name.removeprefix(NVIDIA_MIG_PREFIX)),
        )
        if pool is not None:
            pools.append(pool)
    return pools


def _amd(reader: _Reader) -> GpuPool | None:
    """``amd.com/gpu``: the labeller writes sizes as a value (``amd.com/gpu.vram=64G``) or, of old, into the key."""
    sizes = _amd_property(reader, "vram")
    offered = reader.offered(AMD_GPU)
    built_in = reader.built_in(AMD_GPU)
    if offered is None and not sizes:
        return None
    counted = sum(sizes.values())
    devices = counted if built_in is None else built_in
    if (devices == 0 and not offered) or not _sane(reader, AMD_GPU, devices=devices, replicas=1):
        return None
    products = _amd_property(reader, "product-name")
    return GpuPool(
        resource=AMD_GPU,
        gpu_class=GpuClass.EXCLUSIVE,
        devices=devices,
        allocatable=_allocatable(reader, AMD_GPU, offered, devices=devices, replicas=1),
        hbm_bytes=_amd_memory(reader, sizes),
        product=intern(min(products)) if products else "",
    )


def _amd_property(reader: _Reader, name: str) -> dict[str, int]:
    """Value to number of GPUs that have it (1 where the labeller does not count)."""
    for prefix in ("amd.com/gpu", "beta.amd.com/gpu"):
        value = reader.labels.get(f"{prefix}.{name}")
        if value is not None:
            return {value: 1}
        counted = {
            label.removeprefix(f"{prefix}.{name}."): reader.number(label, unit="GPUs", most=MAX_DEVICES) or 0
            for label in reader.labels
            if label.startswith(f"{prefix}.{name}.")
        }
        if counted:
            return counted
    return {}


def _amd_memory(reader: _Reader, sizes: Mapping[str, int]) -> int | None:
    """Bytes of the smallest of a node's GPUs: any of them may be the one that a pod gets."""
    if not sizes:
        reader.problems.append(
            "label amd.com/gpu.vram: expected the memory of one GPU such as 64G, the label is missing"
        )
        return None
    found = []
    for text in sizes:
        match = _AMD_SIZE.fullmatch(text)
        size = int(match[1]) << _AMD_POWERS[match[2]] if match else 0
        if not 0 < size <= MAX_DEVICE_BYTES:
            reader.problems.append(
                f"label amd.com/gpu.vram: expected the memory of one GPU such as 64G, got {text[:64]!r}"
            )
            return None
        found.append(size)
    return min(found)


def _allocatable(reader: _Reader, resource: str, offered: int | None, *, devices: int, replicas: int) -> int:
    """What the kubelet hands out, at most what the labels count.

    A resource that the kubelet does not list although the labels count devices is handed out by a DRA driver (extended
    resources backed by DRA, Kubernetes 1.36): all of it. A listed 0 stays 0.
    """
    total = devices * replicas
    if offered is None:
        return total
    if offered > total:
        reader.problems.append(
            f"allocatable {resource}: expected at most {devices} devices with {replicas} replicas, as labelled, "
            f"got {offered}"
        )
        return total
    return offered


def _report_unexplained(reader: _Reader, pools: list[GpuPool]) -> None:
    """Name GPUs that the kubelet offers under a resource for which no pool could be made."""
    known = {pool.resource for pool in pools}
    for resource in reader.allocatable:
        if is_gpu(resource) and resource not in known and reader.offered(resource):
            reader.problems.append(
                f"allocatable {resource}: expected labels that describe these devices, found labels of another resource"
            )
