"""How busy a GPU is, beside what it holds: read where the exporter tells, in no way of the figures that decide."""

import pytest

from kvaware_cluster import parse_dcgm
from kvaware_crds.errors import WireError

GPU = '{gpu="0",UUID="GPU-0"}'
MEMORY = f"DCGM_FI_DEV_FB_USED{GPU} 1024\nDCGM_FI_DEV_FB_FREE{GPU} 80896\n"


@pytest.mark.parametrize(
    ("value", "ratio"),
    [("0", 0.0), ("40", 0.4), ("100", 1.0), ("101", None), ("-1", None), ("NaN", None), ("9223372036854775794", None)],
)
def test_a_blank_is_unknown(value, ratio):
    """DCGM's blanks are huge; a figure above 100 % is none."""
    [gpu] = parse_dcgm(f"DCGM_FI_DEV_GPU_UTIL{GPU} {value}\n{MEMORY}", node="n", observed_at_s=0).gpus
    assert (gpu.utilization_ratio, gpu.used_bytes) == (ratio, 2**30)


def test_without_the_figure_it_is_unknown():
    [gpu] = parse_dcgm(MEMORY, node="n", observed_at_s=0).gpus
    assert gpu.utilization_ratio is None


def test_a_gpu_of_which_only_that_is_told_is_no_gpu_with_free_memory():
    """Its memory would be unknown, and the node's with it."""
    busy = 'DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-1"} 50\n'
    assert len(parse_dcgm(MEMORY + busy, node="n", observed_at_s=0).gpus) == 1
    with pytest.raises(WireError, match="DCGM_FI_DEV_FB_USED"):
        parse_dcgm(busy, node="n", observed_at_s=0)
