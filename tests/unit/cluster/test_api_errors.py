import pytest

import kvaware_cluster
from kvaware_cluster import (
    ClusterApiError,
    ConflictError,
    DcgmSettings,
    GoneError,
    KubernetesSettings,
    NotFoundError,
    StoreSettings,
    ThrottledError,
    WorkerError,
)
from kvaware_cluster.api_errors import error_from_answer, error_from_status
from kvaware_crds.errors import UpstreamError


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected"),
    [
        (404, {}, b'{"reason":"NotFound"}', NotFoundError),
        (409, {}, b'{"reason":"Conflict"}', ConflictError),
        (422, {}, b'{"reason":"Invalid","details":{"causes":[{"field":"metadata.uid"}]}}', ConflictError),
        (422, {}, b'{"reason":"Invalid","details":{"causes":[{"field":"spec"}]}}', ClusterApiError),
        (410, {}, b"", GoneError),
        (429, {"Retry-After": "7"}, b"{}", ThrottledError),
        (503, {"Retry-After": "7"}, b"", ThrottledError),
        (503, {}, b"no backend", ClusterApiError),
        (403, {}, b'{"reason":"Forbidden"}', ClusterApiError),
        (500, {}, b'{"reason":"Expired"}', GoneError),
        (502, {}, b"<html>" + b"\xff" * 10_000, ClusterApiError),
        (500, {}, b'["not a status"]', ClusterApiError),
    ],
)
def test_every_answer_is_one_error(status: int, headers: dict[str, str], body: bytes, expected: type[Exception]):
    error = error_from_answer(status, headers, body, what="list of pod")
    assert type(error) is expected
    assert len(str(error)) < 500  # never a whole body
    assert str(error).startswith("list of pod")


@pytest.mark.parametrize(
    ("headers", "body", "wait_s"),
    [
        ({"Retry-After": "7"}, b"", 7.0),
        ({}, b'{"details":{"retryAfterSeconds":3}}', 3.0),
        ({}, b"", 1.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, b"", 1.0),
        ({"Retry-After": "9" * 20}, b"", 1.0),
    ],
)
def test_throttling_says_how_long(headers: dict[str, str], body: bytes, wait_s: float):
    error = error_from_answer(429, headers, body, what="list")
    assert isinstance(error, ThrottledError)
    assert error.retry_after_s == wait_s


def test_a_watchs_error_event_is_read_like_an_answer():
    error = error_from_status({"code": 410, "reason": "Expired", "message": "too old"}, what="watch")
    assert isinstance(error, GoneError)
    assert error.reason == "Expired"
    assert error_from_status({"code": "x"}, what="watch").status == 500


def test_the_tree_is_the_drawn_one():
    assert all(issubclass(each, ClusterApiError) for each in (ConflictError, GoneError, NotFoundError, ThrottledError))
    assert issubclass(ClusterApiError, UpstreamError)
    assert issubclass(WorkerError, UpstreamError)


def test_every_public_name_exists():
    assert len(set(kvaware_cluster.__all__)) == len(kvaware_cluster.__all__)
    assert all(hasattr(kvaware_cluster, name) for name in kvaware_cluster.__all__)


def test_promised_defaults():
    """Users read these in the documentation: a change is news."""
    kubernetes, store, dcgm = KubernetesSettings(), StoreSettings(), DcgmSettings()
    assert (kubernetes.page_size, kubernetes.watch_timeout_s, kubernetes.write_timeout_s) == (500, 30.0, 4.0)
    assert (store.backoff_first_s, store.backoff_max_s, store.quota_removal_hold_s) == (0.2, 10.0, 3.0)
    assert (store.rack_label, store.zone_label) == ("topology.kubernetes.io/rack", "topology.kubernetes.io/zone")
    assert (dcgm.enabled, dcgm.port, dcgm.interval_s, dcgm.concurrency, dcgm.missed_limit) == (True, 9400, 15.0, 16, 3)
    assert kubernetes.exporter_timeout_s == 3.0
    assert "gpu-operator" in dcgm.namespaces
    assert "default" not in dcgm.namespaces
