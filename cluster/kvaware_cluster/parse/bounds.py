"""How large a figure from outside may be: beyond it is a typing error, or somebody who wants sums to overflow.

Together they keep the HBM of one node or one pod below 2^53, so that the sums of a whole cluster stay inside 64 bits.
"""

from typing import Final

__all__ = [
    "MAX_DEVICES",
    "MAX_DEVICE_BYTES",
    "MAX_GPUS_PER_POD",
    "MAX_HBM_PER_GPU_BYTES",
    "MAX_RANK",
    "MAX_RANKS",
    "MAX_REPLICAS",
]

MAX_DEVICES: Final = 1024
"""Devices of one node under one resource name. The largest machines have 16 GPUs, of up to 7 MIG slices each."""
MAX_REPLICAS: Final = 1024
"""Pods that share one device."""
MAX_DEVICE_BYTES: Final = 2**41
"""2 TiB on one device: twice what is announced."""
MAX_GPUS_PER_POD: Final = MAX_DEVICES
"""Per resource: no node has more."""
MAX_HBM_PER_GPU_BYTES: Final = 2 * MAX_DEVICE_BYTES
"""What a pod may wish for on each GPU. Above the largest device, so that a wish cut down to this still fits nowhere."""
MAX_RANK: Final = 4095
"""Of a data-parallel rank: the largest deployments count some hundred over all of their pods."""
MAX_RANKS: Final = 64
"""Data-parallel ranks of one pod: whoever may speak for a pod cannot fill the memory with workers."""
