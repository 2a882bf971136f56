import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaware_cluster import parse_reservation, render_reservation
from kvaware_crds.errors import WireError
from kvaware_engine.observations import GpuClass, Reservation

GOOD = {
    "v": 1,
    "model": None,
    "tenant": "ml",
    "resource": "nvidia.com/gpu",
    "gpus": 1,
    "hbm_per_gpu_bytes": None,
    "class": "exclusive",
    "devices": [],
    "decision_id": "",
}

RESERVATIONS = st.builds(
    Reservation,
    model=st.none() | st.text(min_size=1, max_size=63),
    tenant=st.text(min_size=1, max_size=63),
    resource=st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"]),
    gpus=st.integers(1, 128),
    hbm_per_gpu_bytes=st.none() | st.integers(1, 2**42),
    gpu_class=st.sampled_from(GpuClass),
    devices=st.lists(st.integers(0, 127), max_size=16).map(tuple),
    decision_id=st.text(max_size=64),
)


@given(RESERVATIONS)
def test_what_is_written_is_read_back(reservation: Reservation):
    """A restarted extender recovers by listing pods: nothing of a reservation may be lost in the annotation."""
    text = render_reservation(reservation)
    assert parse_reservation(text) == reservation
    assert render_reservation(parse_reservation(text)) == text


def test_the_format_is_pinned():
    """Pods bound by an older version carry it for months."""
    reservation = parse_reservation(orjson.dumps(GOOD).decode())
    assert render_reservation(reservation) == (
        '{"v":1,"model":null,"tenant":"ml","resource":"nvidia.com/gpu","gpus":1,"hbm_per_gpu_bytes":null,'
        '"class":"exclusive","devices":[],"decision_id":""}'
    )


def test_fields_of_a_newer_writer_are_passed_over():
    assert parse_reservation(orjson.dumps(GOOD | {"later": True}).decode()).tenant == "ml"


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": True},
        {"v": None},
        {"tenant": ""},
        {"tenant": 7},
        {"model": []},
        {"resource": None},
        {"gpus": 0},
        {"gpus": True},
        {"gpus": 1.0},
        {"gpus": 10**9},
        {"hbm_per_gpu_bytes": 0},
        {"hbm_per_gpu_bytes": "40Gi"},
        {"hbm_per_gpu_bytes": 2**60},
        {"class": "mine"},
        {"class": None},
        {"class": {}},
        {"devices": [-1]},
        {"devices": 0},
        {"decision_id": 7},
    ],
)
def test_every_field_that_cannot_be_used_is_a_wire_error(change: dict[str, object]):
    with pytest.raises(WireError, match="reservation"):
        parse_reservation(orjson.dumps(GOOD | change).decode())


@pytest.mark.parametrize("text", ["", "null", "[]", "{", "1", '"x"', "x" * 10_000, "\ud800"])
def test_what_is_no_reservation_is_a_wire_error(text: str):
    with pytest.raises(WireError, match="reservation"):
        parse_reservation(text)
