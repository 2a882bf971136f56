"""Hardware profiles: their arithmetic, and which one is taken for a model on a GPU."""

import pytest

from kvaware_engine import FALLBACK_PROFILE, ProfileBook, ProfileOrigin, model_parameters
from kvaware_testing.worker_builders import hardware


def test_prefill_is_a_base_a_slope_and_attention_over_what_is_cached():
    """10 + 0.5*100 + 0.001*100*100 = 70; with 200 cached 0.001*100*(100 + 400) = 50 instead of 10."""
    profile = hardware(prefill=(10, 0.5, 0.001))
    assert profile.prefill_ms(100) == pytest.approx(70)
    assert profile.prefill_ms(100, cached_tokens=200) == pytest.approx(110)
    assert profile.prefill_ms(0, cached_tokens=200) == 0


@pytest.mark.parametrize(
    ("batch", "step_ms"),
    [
        pytest.param(0.5, 20, id="below the first"),
        pytest.param(10, 20, id="measured"),
        pytest.param(15, 25, id="between two"),
        pytest.param(30, 40, id="beyond the last: its slope goes on"),
    ],
)
def test_decode_steps_are_linear_between_what_was_measured(batch, step_ms):
    """(1, 20), (10, 20), (20, 30) ms."""
    assert hardware().decode_step_ms(batch) == pytest.approx(step_ms)


@pytest.mark.parametrize(
    ("allowed_ms", "batch"),
    [
        pytest.param(10, 1, id="not even one fits"),
        pytest.param(20.0001, 10, id="the flat part"),
        pytest.param(25, 15, id="between"),
        pytest.param(40, 30, id="extrapolated"),
        pytest.param(1000, 100, id="the server's limit"),
        pytest.param(None, 20, id="no objective: what was measured"),
    ],
)
def test_the_largest_batch_is_the_inverse_of_the_step(allowed_ms, batch):
    """Of at most 100."""
    assert hardware().largest_batch(allowed_ms, at_most=100) == pytest.approx(batch, abs=0.01)


@pytest.mark.parametrize(
    ("model_id", "billions"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", 70),
        ("Qwen/Qwen2.5-0.5B", 0.5),
        ("mistralai/Mixtral-8x7B-v0.1", 14),  # two of eight experts at work
        ("Qwen/Qwen3-30B-A3B", 3),  # 3 billion are used per token
        ("bigscience/bloom-176b", 176),
        ("openai/gpt-oss", None),
        ("ab7b/model", None),
        ("org/model-0b", None),
        ("", None),
    ],
)
def test_a_models_name_tells_its_size(model_id, billions):
    """Those that one token uses: they are what is read and computed."""
    assert model_parameters(model_id) == (None if billions is None else pytest.approx(billions * 1e9))


def book() -> ProfileBook:
    """Two GPUs, one of them also in a smaller kind, and three measurements of the first."""
    profiles = [
        hardware(),
        hardware(gpus=2, decode=((1, 12.0),)),
        hardware(model="seventy", parameters=70e9, gpus=8),
        hardware(product="slow", words=("slow",), tflops=25, decode=((1, 90.0),)),
        hardware(product="test-small", words=("test", "small"), decode=((1, 50.0),)),
    ]
    return ProfileBook({str(number): profile for number, profile in enumerate(profiles)})


def test_what_was_measured_is_taken_as_it_is():
    """The same GPU, number of GPUs and size."""
    found = book().find("VENDOR-TEST-80GB", "seven-7B", 1)
    assert (found.origin, found.decode_step_ms(1)) == (ProfileOrigin.MEASURED, 20)
    assert book().find("VENDOR-TEST-80GB-SHARED", "other-7b", 1) == found


def test_another_size_scales_with_the_weights_per_gpu():
    """14 billion on two GPUs, from 7 billion on two: twice the weights on each, 24 ms instead of 12."""
    found = book().find("VENDOR-TEST-80GB", "seven-14B", 2)
    assert (found.origin, found.gpus) == (ProfileOrigin.SCALED, 2)
    assert found.decode_step_ms(1) == pytest.approx(24)
    assert found.prefill_ms(100) == pytest.approx(100)  # 0.5 ms * 2


def test_the_product_with_the_most_matching_words_holds():
    """A label of the small kind has the words of both."""
    assert book().find("VENDOR-TEST-SMALL", "seven-7b", 1).decode_step_ms(1) == 50


def test_a_slice_of_a_gpu_computes_with_its_share():
    """2 of 7 slices: 20 ms * 7/2. The slice's memory in the label is no word of the product."""
    found = book().find("VENDOR-TEST-80GB-MIG-2g.20gb-small", "seven-7b", 1)
    assert (found.origin, found.gpus) == (ProfileOrigin.SCALED, 1)
    assert found.decode_step_ms(1) == pytest.approx(70)


@pytest.mark.parametrize("product", [None, "", "VENDOR-NEW-GPU"])
def test_an_unknown_gpu_is_a_guess_by_the_slowest_that_was_measured(product):
    """Too many replicas are noticed and taken back; too few hurt first."""
    found = book().find(product, "seven-7b", 1)
    assert (found.origin, found.decode_step_ms(1)) == (ProfileOrigin.GUESS, 90)


def test_an_unknown_size_is_a_guess_by_the_number_of_gpus():
    """Somebody chose so many GPUs since the model needs them."""
    found = book().find("VENDOR-TEST-80GB", "no-size", 2)
    assert (found.origin, found.decode_step_ms(1)) == (ProfileOrigin.GUESS, 12)


def test_without_profiles_there_is_one_to_fall_back_on():
    """70 billion on 4 GPUs of the A100's speed: as measured, and still a guess."""
    found = ProfileBook({}).find("NVIDIA-A100-SXM4-80GB", "llama-70b", 4)
    assert found.origin is ProfileOrigin.GUESS
    assert found.decode_step_ms(1) == FALLBACK_PROFILE.decode_step_ms(1)


def test_what_is_extrapolated_is_marked():
    """Prompts above 8,192 tokens and batches above 20 were not measured; a scaled profile is never measured."""
    profile = hardware()
    assert not profile.extrapolates(prompt_tokens=8192, batch=20)
    assert profile.extrapolates(prompt_tokens=8193)
    assert profile.extrapolates(batch=21)
    assert book().find("VENDOR-TEST-80GB", "x-14B", 2).extrapolates()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        pytest.param({"prefill": (0, 0, 0)}, "prefill figures of 0 or more that grow", id="prefill that costs nothing"),
        pytest.param({"prefill": (-1, 1, 0)}, "prefill figures of 0 or more", id="negative"),
        pytest.param({"decode": ()}, "decode steps of ascending batch", id="no step"),
        pytest.param({"decode": ((2, 5.0), (1, 6.0))}, "decode steps of ascending batch", id="batches out of order"),
        pytest.param(
            {"decode": ((1, 5.0), (2, 4.0))}, "decode steps of ascending batch", id="larger batch, shorter step"
        ),
        pytest.param({"decode": ((1, 0.0),)}, "decode steps", id="a step of 0 ms"),
        pytest.param({"gpus": 0}, "gpus and prompt_tokens_max of 1 or more", id="no GPU"),
        pytest.param({"parameters": 0}, "parameters: expected a number above 0", id="no parameters"),
        pytest.param({"tflops": float("nan")}, "tflops: expected a number above 0", id="not a number"),
    ],
)
def test_profiles_that_make_no_sense_are_refused(wrong, message):
    """They are read from a file that people edit."""
    with pytest.raises(ValueError, match=message):
        hardware(**wrong)
