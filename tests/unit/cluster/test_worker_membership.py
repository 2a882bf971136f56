from dataclasses import replace
from typing import Any

import pytest
import structlog

from kvaware_cluster import Change, ScrapeTarget, WorkerMembership, WorkerPod, parse_model, split_worker
from kvaware_engine.observations import ModelObservation, ModelWorkers, NodeSelector, ObjectKey, RoleFootprint
from kvaware_engine.reports import WorkerPlace
from kvaware_testing.fake_api import raw_model

LLAMA = ObjectKey("ml", "llama")
POD = ObjectKey("ml", "p-0")


def pod(name: str = "p-0", *, namespace: str = "ml", **changes: Any) -> WorkerPod:
    """A Ready pod on n1; its labels follow from model, role and ``extra``."""
    labels = {
        key: value
        for key, value in (
            ("kvaware.io/model", changes.get("model", "llama")),
            ("kvaware.io/role", changes.get("role")),
        )
        if value is not None
    } | changes.pop("extra", {})
    whole = WorkerPod(
        uid=f"u-{name}",
        key=ObjectKey(namespace, name),
        model="llama",
        role=None,
        node="n1",
        ip="10.0.0.7",
        ready=True,
        finished=False,
        terminating=False,
        unschedulable=False,
        labels=labels,
        started_at="t1",
    )
    return replace(whole, **changes)


def model(
    name: str = "llama",
    *roles: str,
    namespace: str = "ml",
    selector: dict[str, str] | None = None,
    pods_per_replica: int = 1,
    **workers: Any,
) -> ModelObservation:
    return ModelObservation(
        key=ObjectKey(namespace, name),
        uid=f"u-{name}",
        model_id="m",
        revision="",
        roles=tuple(
            RoleFootprint(name=role, gpus_per_pod=1, hbm_per_gpu_bytes=None, pods_per_replica=pods_per_replica)
            for role in roles or ("both",)
        ),
        workers=ModelWorkers(
            selector=None if selector is None else NodeSelector(match_labels=tuple(sorted(selector.items()))), **workers
        ),
    )


class Seen:
    """A membership, fed as a store feeds it, and what it tells."""

    def __init__(self, *things: WorkerPod | ModelObservation) -> None:
        self.places: dict[str, WorkerPlace] = {}
        self.targets: dict[ObjectKey, ScrapeTarget] = {}
        self.told = 0
        self.pods: dict[ObjectKey, WorkerPod] = {}
        self.models: dict[ObjectKey, ModelObservation] = {}
        self.membership = WorkerMembership(placed=self._placed)
        self.membership.on_target(self._target)
        self.put(*things)

    def put(self, *things: WorkerPod | ModelObservation) -> None:
        for thing in things:
            if isinstance(thing, WorkerPod):
                self.membership.pod_changed(Change("workerpod", thing.key, self.pods.get(thing.key), thing))
                self.pods[thing.key] = thing
            else:
                change = Change("inferencemodel", thing.key, self.models.get(thing.key), thing)
                self.membership.changed(change)
                self.models[thing.key] = thing

    def remove(self, key: ObjectKey) -> None:
        if key in self.pods:
            self.membership.pod_changed(Change("workerpod", key, self.pods.pop(key), None))
        else:
            self.membership.changed(Change("inferencemodel", key, self.models.pop(key), None))

    def belonging(self) -> dict[str, tuple[str, str]]:
        return {worker: (place.model.name, place.role) for worker, place in self.places.items()}

    def _placed(self, worker: str, place: WorkerPlace | None) -> None:
        self.told += 1
        if place is None:
            del self.places[worker]
        else:
            self.places[worker] = place

    def _target(self, pod_key: ObjectKey, target: ScrapeTarget | None) -> None:
        if target is None:
            del self.targets[pod_key]
        else:
            self.targets[pod_key] = target


def test_a_labelled_pod_is_a_worker_of_its_model():
    seen = Seen(model(), pod())
    assert seen.places == {
        "ml:p-0:0": WorkerPlace(
            worker="ml:p-0:0",
            model=LLAMA,
            role="both",
            incarnation="u-p-0/t1",
            ready=True,
            node="n1",
            address="10.0.0.7:8000",
        )
    }
    assert seen.targets == {POD: ScrapeTarget(pod=POD, model=LLAMA, incarnation="u-p-0/t1", address="10.0.0.7:8000")}


def test_what_comes_first_makes_no_difference():
    assert Seen(pod(), model()).places == Seen(model(), pod()).places


SELECTING = {"app": "vllm"}


@pytest.mark.parametrize(
    ("models", "of_pod", "belongs"),
    [
        pytest.param([model()], pod(), ("llama", "both"), id="by label"),
        pytest.param([model()], pod(model="other"), None, id="another model's"),
        pytest.param([model()], pod(model=None), None, id="nobody's"),
        pytest.param([model(namespace="dev")], pod(), None, id="a model of another namespace"),
        pytest.param([model(selector=SELECTING)], pod(model=None, extra=SELECTING), ("llama", "both"), id="selected"),
        pytest.param([model(selector=SELECTING)], pod(), None, id="labelled and not selected"),
        pytest.param([model(selector=SELECTING)], pod(model=None, extra={"app": "x"}), None, id="not selected"),
        pytest.param(
            [model("a", selector=SELECTING), model()],
            pod(extra=SELECTING),
            ("llama", "both"),
            id="the label goes first",
        ),
        pytest.param(
            [model("a", selector=SELECTING), model("b", selector=SELECTING)],
            pod(model="b", extra=SELECTING),
            ("b", "both"),
            id="selected twice, and the label says which",
        ),
        pytest.param(
            [model("b", selector=SELECTING), model("a", selector=SELECTING)],
            pod(model=None, extra=SELECTING),
            ("a", "both"),
            id="selected twice: the first by name",
        ),
        pytest.param([model("llama", "prefill", "decode")], pod(role="decode"), ("llama", "decode"), id="its role"),
        pytest.param([model("llama", "prefill", "decode")], pod(), None, id="two roles and no word which"),
        pytest.param([model("llama", "prefill")], pod(role="decode"), None, id="a role that is none"),
    ],
)
@pytest.mark.parametrize("pods_first", [False, True])
def test_which_pods_are_workers_of_which_model(
    models: list[ModelObservation], of_pod: WorkerPod, belongs: tuple[str, str] | None, pods_first
):
    seen = Seen(of_pod, *models) if pods_first else Seen(*models, of_pod)
    assert seen.belonging() == ({} if belongs is None else {"ml:p-0:0": belongs})


def test_pods_that_name_no_role_of_their_model_are_told_once():
    with structlog.testing.capture_logs() as logs:
        Seen(model("llama", "prefill", "decode"), pod("p-0"), pod("p-1"), pod("p-2", role="encode"))
    expected = "pods expected to name one of the roles prefill, decode in the label kvaware.io/role"
    assert [each["problem"] for each in logs] == [
        f"{expected}, got {label}: they are no workers" for label in ("none", "encode")
    ]


@pytest.mark.parametrize(("index", "worker"), [("0", True), ("1", False)])
def test_of_a_group_that_is_one_replica_only_the_leader_serves(index: str, worker):
    """The others run no server of their own: they would never report, and the load would look unknown."""
    labels = {"leaderworkerset.sigs.k8s.io/worker-index": index}
    seen = Seen(model(pods_per_replica=2), pod(extra=labels))
    assert bool(seen.places) is worker


@pytest.mark.parametrize(
    ("change", "ready"),
    [
        pytest.param({"node": None}, None, id="not bound"),
        pytest.param({"finished": True}, None, id="finished"),
        pytest.param({"ready": False}, False, id="not Ready"),
        pytest.param({"terminating": True}, False, id="going"),
        pytest.param({"ip": None, "ready": False}, False, id="no address yet"),
    ],
)
def test_a_worker_is_expected_while_its_pod_is_bound_and_asked_while_it_is_ready(change: dict[str, Any], ready):
    seen = Seen(model(), pod())
    seen.put(pod(**change))
    assert {place.ready for place in seen.places.values()} == (set() if ready is None else {ready})
    assert not seen.targets
    seen.put(pod())
    assert set(seen.targets) == {POD}


def test_a_restarted_container_and_a_new_pod_of_the_name_are_new_incarnations():
    """ai-dynamo/dynamo#13513: what the old one held is gone; a pod that is away for a moment is the same."""
    seen = Seen(model(), pod())
    first = seen.places["ml:p-0:0"].incarnation
    seen.put(pod(ready=False))
    seen.put(pod())
    assert seen.places["ml:p-0:0"].incarnation == first
    seen.put(pod(started_at="t2"))
    second = seen.places["ml:p-0:0"].incarnation
    seen.put(pod(uid="u-new", started_at="t2"))
    third = seen.places["ml:p-0:0"].incarnation
    assert len({first, second, third}) == 3
    assert seen.targets[POD].incarnation == third


@pytest.mark.parametrize(
    ("spec", "http", "metrics"),
    [
        ({}, 8000, 8000),
        ({"server": "SGLang"}, 30_000, 30_000),
        ({"ports": {"http": 9000}}, 9000, 9000),
        ({"ports": {"metrics": 9100}}, 8000, 9100),
        ({"server": "SGLang", "ports": {"http": 9000, "metrics": 9100}}, 9000, 9100),
        ({"ports": {"metrics": 9100, "zeroMQ": 1}, "capabilities": ["fly"]}, 8000, 9100),  # of a newer CRD
        ({"ports": {"metrics": "http"}}, 8000, 8000),  # cannot be read: the usual ones
    ],
)
def test_workers_are_asked_on_the_ports_of_the_spec(spec: dict[str, Any], http: int, metrics: int):
    raw = raw_model()
    raw["metadata"]["uid"] = "u"
    raw["spec"]["workers"] = spec
    seen = Seen(parse_model(raw), pod(ip="fd00::7"))
    assert seen.places["ml:p-0:0"].address == f"[fd00::7]:{http}"
    assert seen.targets[POD].address == f"[fd00::7]:{metrics}"


def test_a_models_selector_is_read():
    raw = raw_model()
    raw["metadata"]["uid"] = "u"
    raw["spec"]["workers"] = {
        "selector": {"matchLabels": SELECTING, "matchExpressions": [{"key": "canary", "operator": "DoesNotExist"}]}
    }
    seen = Seen(parse_model(raw), pod("p-0", model=None, extra=SELECTING))
    seen.put(pod("p-1", model=None, extra={**SELECTING, "canary": ""}))
    assert seen.belonging() == {"ml:p-0:0": ("llama", "both")}


def test_a_model_that_changes_or_goes_takes_its_workers_along():
    seen = Seen(model(), pod("p-0"), pod("p-1", extra=SELECTING))
    seen.put(model(selector=SELECTING, metrics_port=9100))
    assert set(seen.places) == {"ml:p-1:0"}
    assert [target.address for target in seen.targets.values()] == ["10.0.0.7:9100"]
    seen.put(model())
    assert set(seen.places) == {"ml:p-0:0", "ml:p-1:0"}
    seen.remove(LLAMA)
    assert (seen.places, seen.targets) == ({}, {})


def test_a_pod_goes_over_to_the_model_that_its_label_names_now():
    seen = Seen(model("a"), model("b"), pod(model="a"))
    seen.put(pod(model="b"))
    assert seen.belonging() == {"ml:p-0:0": ("b", "both")}
    assert seen.targets[POD].model == ObjectKey("ml", "b")
    seen.remove(POD)
    assert (seen.places, seen.targets) == ({}, {})
    assert not seen.membership._namespaces
    assert not seen.membership._labelled


def test_nothing_is_told_twice_of_what_did_not_change():
    """Each Change may come again after a fault, and most changes of a pod concern no worker."""
    seen = Seen(model(), pod())
    before = seen.told
    seen.put(pod(), model(), pod(deletion_cost=5))
    assert seen.told == before


def test_each_rank_that_a_scrape_shows_is_a_worker_until_the_next_incarnation():
    seen = Seen(model(), pod())
    seen.membership.scraped(POD, [0, 1], incarnation="u-p-0/t1")
    assert set(seen.places) == {"ml:p-0:0", "ml:p-0:1"}
    assert len({place.address for place in seen.places.values()}) == 1
    seen.put(pod(started_at="t2"))
    assert set(seen.places) == {"ml:p-0:0"}


def test_a_pod_with_a_later_rank_alone_has_no_rank_0():
    """Behind an external load balancer each pod runs one rank."""
    seen = Seen(model(), pod())
    seen.membership.scraped(POD, [3], incarnation="u-p-0/t1")
    assert set(seen.places) == {"ml:p-0:3"}


def test_a_scrape_of_an_incarnation_that_is_gone_shows_nothing():
    seen = Seen(model(), pod(started_at="t2"))
    seen.membership.scraped(POD, [0, 1], incarnation="u-p-0/t1")
    seen.membership.scraped(ObjectKey("ml", "unknown"), [0, 1], incarnation="u")
    assert set(seen.places) == {"ml:p-0:0"}


def test_a_rank_that_beats_is_a_worker_beside_those_that_a_scrape_shows():
    seen = Seen(model(), pod())
    assert seen.membership.heard("ml:p-0:0") == seen.places["ml:p-0:0"]
    place = seen.membership.heard("ml:p-0:2")
    assert place is not None
    assert (place.worker, place.incarnation) == ("ml:p-0:2", "u-p-0/t1")
    assert seen.membership.place("ml:p-0:2") == place
    seen.membership.scraped(POD, [0, 1], incarnation="u-p-0/t1")
    assert set(seen.places) == {"ml:p-0:0", "ml:p-0:1", "ml:p-0:2"}


def test_whoever_may_beat_for_a_pod_cannot_fill_the_memory_with_ranks():
    seen = Seen(model(), pod())
    for rank in range(200):
        seen.membership.heard(f"ml:p-0:{rank}")
    assert len(seen.places) == 64
    assert seen.membership.heard("ml:p-0:100") is None


@pytest.mark.parametrize(
    "worker", ["", "ml", "ml:p-0", "ml:p-0:", "ml:p-0:x", "ml:p-0:-1", "ml:p-0:00", ":p-0:0", "ml::0"]
)
def test_what_is_no_workers_id_names_none(worker: str):
    seen = Seen(model(), pod())
    assert split_worker(worker) is None
    assert seen.membership.heard(worker) is None
    assert seen.membership.place(worker) is None


@pytest.mark.parametrize("worker", ["ml:p-1:0", "dev:p-0:0", "ml:p-0:4096", "ml:p-0:99999"])
def test_a_worker_that_nobody_expects_is_unknown(worker: str):
    assert Seen(model(), pod()).membership.heard(worker) is None


def test_whoever_asks_for_targets_later_hears_of_those_that_there_are():
    seen = Seen(model(), pod())
    heard: list[ObjectKey] = []
    seen.membership.on_target(lambda key, _target: heard.append(key))
    assert heard == [POD]
