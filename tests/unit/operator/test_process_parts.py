"""Readiness, metrics, settings, scales: the parts around the looks at objects."""

import dataclasses
import random

import pytest

from kvaware_cluster import ClusterApiError, Kind, NotFoundError, ScaleTargetError
from kvaware_cluster.workloads import Scale, ScaleTarget
from kvaware_crds.errors import ConfigError, UpstreamError
from kvaware_engine.observations import ObjectKey
from kvaware_operator import OperatorSettings, load_settings
from kvaware_operator.metrics import Metrics
from kvaware_operator.readiness import readiness
from kvaware_operator.scales import ScaleProblem, Scales
from kvaware_testing.operator_harness import scale
from kvaware_testing.store_harness import FakeClock

TARGET = ScaleTarget("apps/v1", "Deployment", "ml", "llama")


@pytest.mark.parametrize(
    ("changes", "ready", "words"),
    [
        pytest.param({}, True, ["ok"], id="all is well"),
        pytest.param({"leading": False}, True, ["waits for the lease"], id="a standby could take over"),
        pytest.param(
            {"leading": False, "lease_problem": "UpstreamError: refused"},
            False,
            ["the lease cannot be read or written: UpstreamError: refused"],
            id="a standby that could not take over",
        ),
        pytest.param(
            {"lease_problem": "UpstreamError: refused"}, True, ["ok"], id="a leader whose renewal is tried again"
        ),
        pytest.param({"ended": "store"}, False, ["the background task store has ended"], id="a part of it died"),
        pytest.param(
            {"ages_s": {Kind.POD: None}}, False, ["pod: not listed yet, or its CRD or the right"], id="unknown kind"
        ),
        pytest.param({"ages_s": {Kind.POD: 100.4}}, False, ["pod: the view is 100 s old"], id="stale kind"),
        pytest.param({"leading": False, "ages_s": {}, "ended": "kopf"}, False, ["kopf"], id="a dead standby"),
        pytest.param(
            {"notes": {"inferencemodel": "older"}}, True, ["ok", "inferencemodel: older"], id="what only hampers"
        ),
    ],
)
def test_readiness_says_what_is_wrong(changes, ready, words):
    given = {
        "leading": True,
        "lease_problem": None,
        "ended": None,
        "ages_s": {Kind.POD: 1.0},
        "max_age_s": 90.0,
        "notes": {},
        **changes,
    }
    is_ready, text = readiness(**given)
    assert is_ready is ready
    for word in words:
        assert word in text


def test_series_of_models_end_with_them():
    """slauger/openvox-operator#554: gauges of deleted objects lived on, and their alerts too."""
    metrics, llama = Metrics(), ObjectKey("ml", "llama")
    metrics.desired(llama, {"both": 3, "decode": 2})
    metrics.desired(ObjectKey("ml", "qwen"), {"both": 1})
    assert b'kvaware_desired_replicas{model="llama",namespace="ml",role="decode"} 2.0' in metrics.render()
    metrics.desired(llama, {"both": None})
    assert b'model="llama"' not in metrics.render(), "unknown is no figure"
    metrics.desired(llama, {"both": 3})
    metrics.forget_model(llama)
    metrics.forget_model(llama)
    assert b'model="llama"' not in metrics.render()
    assert b'model="qwen"' in metrics.render()


def test_the_promised_defaults():
    """Chart and documentation are written against these."""
    settings = OperatorSettings()
    groups = {"lease", "queue", "scaling", "extender", "workload_watches", "store", "kubernetes"}
    assert {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings) if f.name not in groups} == {
        "host": "127.0.0.1",
        "port": 8902,
        "extender_url": "http://127.0.0.1:8900",
        "poll_s": 10.0,
        "load_grace_s": 30.0,
        "status_interval_s": 10.0,
        "scale_max_age_s": 3600.0,
        "unwatched_scale_max_age_s": 60.0,
        "max_view_age_s": 90.0,
        "settle_s": 3.0,
        "stop_timeout_s": 5.0,
        "hardware_profiles": "",
        "kopf": True,
        "kopf_after_s": 60.0,
    }
    assert (settings.lease.enabled, settings.lease.name, settings.lease.namespace) == (True, "kvaware-operator", "")
    assert dataclasses.asdict(settings.queue) == {
        "workers": 8,
        "backoff_first_s": 1.0,
        "backoff_max_s": 120.0,
        "timeout_s": 60.0,
    }


def test_settings_come_from_a_file_and_from_variables(tmp_path):
    path = tmp_path / "operator.yaml"
    path.write_text("extenderUrl: http://kvaware:8900\nlease: {enabled: false}\n")
    settings = load_settings(path, {"KVAWARE_POLL_S": "2", "KVAWARE_PORT": "tcp://10.0.0.1:8902"})
    assert (settings.extender_url, settings.lease.enabled, settings.poll_s) == ("http://kvaware:8900", False, 2.0)
    assert settings.port == 8902, "what the kubelet puts beside a Service named kvaware is no setting"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("extenderUrl: kvaware:8900", "setting extenderUrl", id="no URL"),
        pytest.param("pollS: 0", "setting pollS", id="no pause at all"),
        pytest.param("apiPort: 1", "unknown key apiPort", id="the extender's"),
    ],
)
def test_settings_that_cannot_be_used_are_named(tmp_path, text, message):
    path = tmp_path / "operator.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_settings(path, {})


class Workload:
    """Answers reads of one scale."""

    def __init__(self) -> None:
        self.answer: Scale | Exception = scale(2)
        self.reads = 0
        self.during_read = lambda: None

    async def read_scale(self, target: ScaleTarget) -> Scale:
        """See ``ClusterApi``."""
        self.reads += 1
        self.during_read()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def scales(workload: Workload, clock: FakeClock, *, watched: bool = True) -> Scales:
    return Scales(
        workload,  # type: ignore[arg-type]  # the one verb that is used
        max_age_s=3600.0,
        unwatched_max_age_s=60.0,
        watched=lambda _target: watched,
        clock=clock,
        rng=random.Random(1),  # noqa: S311  # jitter
    )


@pytest.mark.parametrize(("watched", "again_s"), [(True, 3600.0), (False, 60.0)])
async def test_a_scale_is_read_once_until_it_changed_or_is_old(watched, again_s):
    """At rest nothing is asked: a thousand models may cost one request a second."""
    workload, clock = Workload(), FakeClock()
    cache = scales(workload, clock, watched=watched)
    for _ in range(3):
        assert await cache.read(TARGET) == scale(2)
    clock.now_s += again_s * 0.79
    await cache.read(TARGET)
    assert workload.reads == 1, "a fifth of the time is drawn"
    clock.now_s += again_s * 0.21
    await cache.read(TARGET)
    assert workload.reads == 2
    cache.changed(TARGET)
    await cache.read(TARGET)
    assert workload.reads == 3


async def test_a_change_during_the_read_is_not_missed():
    workload, clock = Workload(), FakeClock()
    cache = scales(workload, clock)
    workload.during_read = lambda: cache.changed(TARGET)
    await cache.read(TARGET)
    workload.during_read = lambda: None
    await cache.read(TARGET)
    assert workload.reads == 2


async def test_what_was_written_need_not_be_read():
    workload, clock = Workload(), FakeClock()
    cache = scales(workload, clock)
    cache.put(TARGET, scale(5))
    assert await cache.read(TARGET) == scale(5)
    assert workload.reads == 0


@pytest.mark.parametrize(
    ("error", "reason", "unknown"),
    [
        pytest.param(NotFoundError("x", status=404, reason="NotFound"), "TargetNotFound", False, id="not there"),
        pytest.param(ScaleTargetError("has no scale"), "TargetNotScalable", False, id="no scale"),
        pytest.param(ClusterApiError("x", status=403, reason="Forbidden"), "Forbidden", False, id="no right"),
        pytest.param(ClusterApiError("x", status=500, reason=""), "ApiUnavailable", True, id="a sick server"),
        pytest.param(UpstreamError("x"), "ApiUnavailable", True, id="no answer"),
    ],
)
async def test_why_a_scale_cannot_be_had(error, reason, unknown):
    workload, clock = Workload(), FakeClock()
    workload.answer = error
    cache = scales(workload, clock)
    found = await cache.read(TARGET)
    assert isinstance(found, ScaleProblem)
    assert (found.reason, found.unknown) == (reason, unknown)
    await cache.read(TARGET)
    assert workload.reads == 1, "not asked again at once"
    clock.now_s += 2.0
    await cache.read(TARGET)
    assert workload.reads == (2 if unknown else 1), "a server that gave no answer is asked soon"


async def test_what_nobody_scales_any_more_is_forgotten():
    workload, clock = Workload(), FakeClock()
    cache = scales(workload, clock)
    await cache.read(TARGET)
    cache.forget(TARGET)
    assert cache.last(TARGET) is None
