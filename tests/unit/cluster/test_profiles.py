"""The shipped hardware profiles, a file of one's own over them, and the fit that made them."""

from pathlib import Path

import pytest

from kvaware_cluster.profiles import load_profiles
from kvaware_crds.errors import ConfigError
from kvaware_engine import ProfileBook, ProfileOrigin
from kvaware_testing.fit_profiles import fit, fit_decode, fit_prefill, main, read_rows

OWN = """
products:
- {name: nova-1, words: [Nova], tflops: 500, terabytesPerSecond: 2}
profiles:
- product: nova-1
  model: own-7b
  parametersBillions: 7
  gpus: 1
  prefill: {baseMs: 5, msPerToken: 0.1, msPerTokenSquared: 0}
  decodeSteps: [[1, 8], [16, 12]]
"""


@pytest.fixture
def own(tmp_path: Path):
    """Write a file of one's own; returns its path."""

    def write(content: str) -> Path:
        path = tmp_path / "own.yaml"
        path.write_text(content, "utf-8")
        return path

    return write


def test_the_shipped_profiles_cover_what_was_measured():
    """Splitwise's published measurements: medians at 2,048 tokens and at a batch of 32, within the fit's error."""
    found = ProfileBook(load_profiles()).find("NVIDIA-H100-80GB-HBM3", "meta-llama/Llama-3.3-70B-Instruct", 4)
    assert found.origin is ProfileOrigin.MEASURED
    assert found.prefill_ms(2048) == pytest.approx(200.7, rel=0.15)
    assert found.decode_step_ms(32) == pytest.approx(36.9, rel=0.01)


@pytest.mark.parametrize(
    ("label", "product"),
    [
        ("NVIDIA-A100-SXM4-80GB-SHARED", "a100-80gb"),
        ("NVIDIA-A100-SXM4-80GB-MIG-3g.40gb", "a100-80gb"),
        ("NVIDIA-A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA-H100-80GB-HBM3", "h100-80gb"),
        ("NVIDIA-H100-PCIe", "h100-pcie"),
        ("NVIDIA-H200", "h200"),
        ("NVIDIA-L40S", "l40s"),
        ("NVIDIA-L4", "l4"),
        ("Tesla-T4", "t4"),
        ("AMD_Instinct_MI300X_OAM", "mi300x"),
    ],
)
def test_labels_as_discovery_writes_them_find_their_product(label, product):
    """GPU feature discovery and AMD's labeller, as on the example cluster."""
    assert ProfileBook(load_profiles()).find(label, "llama-70b", 8).product.name == product


def test_gpus_that_nobody_measured_are_scaled_by_their_nominal_figures():
    """An L40S reads memory at 0.864 TB/s, an H100 at 3.35: steps take 3.88 times as long."""
    book = ProfileBook(load_profiles())
    slow, fast = (book.find(label, "llama-70b", 8) for label in ("NVIDIA-L40S", "NVIDIA-H100-80GB-HBM3"))
    assert slow.origin is ProfileOrigin.SCALED
    assert slow.decode_step_ms(1) == pytest.approx(fast.decode_step_ms(1) * 3.35 / 0.864)


def test_all_shipped_profiles_grow_with_their_work():
    """A profile that promised more for more work would never ask for a replica."""
    for name, profile in load_profiles().items():
        assert profile.prefill_ms(100) < profile.prefill_ms(8192) < profile.prefill_ms(32_768), name
        assert profile.decode_step_ms(1) <= profile.decode_step_ms(64), name


def test_a_file_of_ones_own_joins_the_shipped_ones(own):
    """A new GPU with a measurement of one's own."""
    profiles = load_profiles(own(OWN))
    assert len(profiles) > len(load_profiles())
    found = ProfileBook(profiles).find("VENDOR-NOVA-1", "own-7B", 1)
    assert (found.origin, found.decode_step_ms(16)) == (ProfileOrigin.MEASURED, 12)


def test_a_file_of_ones_own_replaces_what_has_the_same_name(own):
    """Measured again at home."""
    content = """
profiles:
- {product: h100-80gb, model: llama2-70b, parametersBillions: 70, gpus: 4,
   prefill: {baseMs: 1, msPerToken: 1, msPerTokenSquared: 0}, decodeSteps: [[1, 99]]}
"""
    assert load_profiles(own(content))["h100-80gb/llama2-70b/4"].decode_step_ms(1) == 99
    assert load_profiles(own("")) == load_profiles()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("profiles: {", "own.yaml: expected YAML", id="no YAML"),
        pytest.param("[1, 2]", "own.yaml: the file: Input should be", id="no mapping"),
        pytest.param("gpus: []", "own.yaml: gpus: Extra inputs are not permitted", id="unknown key"),
        pytest.param(
            OWN.replace("gpus: 1", "gpus: 0"), "own.yaml: profiles.0.gpus: Input should be greater", id="0 GPUs"
        ),
        pytest.param(OWN.replace("gpus: 1", "gpus: one"), "own.yaml: profiles.0.gpus: Input should be", id="a word"),
        pytest.param(
            OWN.replace("baseMs: 5", "baseMs: .nan"), "own.yaml: profiles.0.prefill.baseMs", id="not a number"
        ),
        pytest.param(
            OWN.replace("[[1, 8], [16, 12]]", "[[1]]"), "own.yaml: profiles.0.decodeSteps.0", id="half a step"
        ),
        pytest.param(
            OWN.replace("[[1, 8], [16, 12]]", "[[16, 8], [1, 12]]"), "own-7b/1: .* ascending batch", id="out of order"
        ),
        pytest.param(
            OWN.replace("product: nova-1", "product: x"), "a product that stands under products", id="no product"
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_that_names_the_place(own, content, message):
    """It is read at the start, and the start fails with this sentence."""
    with pytest.raises(ConfigError, match=message):
        load_profiles(own(content))


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    """Named, with the reason."""
    with pytest.raises(ConfigError, match=r"none\.yaml: expected a file that can be read: No such file"):
        load_profiles(tmp_path / "none.yaml")


def test_the_fit_finds_the_figures_that_made_the_points():
    """20 + 0.1 u + 1e-5 u²."""
    points = [(u, 20 + 0.1 * u + 1e-5 * u * u) for u in (128, 512, 2048, 8192)]
    a, b, c, error = fit_prefill(points)
    assert (a, b, c) == (pytest.approx(20), pytest.approx(0.1), pytest.approx(1e-5))
    assert error < 1e-6


def test_the_fit_has_no_figure_below_zero():
    """A curve that flattens would want a negative square: the straight line is taken."""
    a, b, c, _ = fit_prefill([(100, 10), (200, 18), (400, 30), (800, 45)])
    assert min(a, b, c) >= 0


def test_a_batch_that_was_not_run_as_one_ends_the_steps():
    """Llama2-70b on two GPUs: at 64 the prompts took less than at 32. A shorter step is raised to the one before."""
    runs = {1: (80.0, 37.0), 2: (150.0, 36.9), 32: (2400.0, 52.3), 64: (360.0, 42.3)}
    assert fit_decode(runs) == [(1, 37.0), (2, 37.0), (32, 52.3)]


def test_the_script_fits_a_csv_without_power_caps(tmp_path, capsys):
    """Columns as published; the capped runs are left out."""
    path = tmp_path / "perf_model.csv"
    lines = ["model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel"]
    for hardware, factor in [("h100-80gb", 1.0), ("h100-80gb-pcap", 1.3)]:
        lines += [f"llama2-70b,{hardware},{u},1,128,{(20 + u / 10) * factor},30,4" for u in (128, 512, 2048)]
        lines += [f"llama2-70b,{hardware},512,8,128,{300 * factor},35,4"]
    path.write_text("\n".join(lines), "utf-8")
    (profile,) = fit(read_rows(path))
    assert profile["prefill"]["baseMs"] == pytest.approx(20)
    assert profile["decodeSteps"] == [[1, 30.0], [8, 35.0]]
    assert main([str(path)]) == 0
    assert "h100-80gb-pcap" not in capsys.readouterr().out
    assert main([]) == 2
