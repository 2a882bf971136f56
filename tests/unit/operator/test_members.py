"""Which pods are a model's: by label, by selector, after any order of changes."""

from hypothesis import given
from hypothesis import strategies as st

from kvaware_engine.observations import NodeSelector, ObjectKey
from kvaware_operator.members import Members
from kvaware_operator.model_facts import split_by_role
from kvaware_testing.operator_harness import model_of, worker_pod

LLAMA, QWEN = ObjectKey("ml", "llama"), ObjectKey("ml", "qwen")
OF_LLAMA = NodeSelector(match_labels=(("app", "llama"),))
EVERYTHING = NodeSelector(match_labels=(("tier", "gpu"),))


def names(members: Members, model: ObjectKey) -> list[str]:
    return [pod.key.name for pod in members.pods_of(model)]


def test_a_model_without_a_selector_has_the_pods_that_its_name_is_on():
    members = Members()
    pod, other = worker_pod("a"), worker_pod("b", model="qwen")
    assert members.put_pod(pod.key, None, pod) == {LLAMA}, "a model that does not exist yet is told too"
    members.put_pod(other.key, None, other)
    members.put_model(LLAMA, None)
    assert names(members, LLAMA) == ["a"]
    assert names(members, QWEN) == ["b"]


def test_a_selector_goes_before_the_label_and_the_label_decides_between_two():
    members = Members()
    named = worker_pod("named", labels={"tier": "gpu"})
    selected = worker_pod("selected", model=None, labels={"tier": "gpu", "app": "llama"})
    for pod in (named, selected):
        members.put_pod(pod.key, None, pod)
    members.put_model(LLAMA, OF_LLAMA)
    assert names(members, LLAMA) == ["selected"], "its own selector does not select the pod that carries its name"
    members.put_model(QWEN, EVERYTHING)
    assert names(members, QWEN) == ["named"]
    assert names(members, LLAMA) == ["selected"], "claimed by both: the first by name"


def test_a_change_of_a_model_tells_whose_pods_change():
    members = Members()
    pod = worker_pod("a", model=None, labels={"tier": "gpu"})
    members.put_pod(pod.key, None, pod)
    assert members.put_model(QWEN, EVERYTHING) == {QWEN}
    assert members.put_model(LLAMA, EVERYTHING) == {LLAMA, QWEN}
    assert members.remove_model(LLAMA) == {LLAMA, QWEN}
    assert members.put_model(QWEN, None) == {QWEN}
    assert members.model_of(pod) is None


def test_an_empty_role_label_names_no_role():
    """As for the workers in the extender: else a pod would count as a replica and bring no load."""
    roles = model_of().resource.spec.roles
    of, strangers = split_by_role(roles, [worker_pod("a"), worker_pod("b", role="")])
    assert [[pod.key.name for pod in pods] for pods in (of["both"], strangers)] == [["a"], ["b"]]


def test_finished_pods_are_no_pods():
    members = Members()
    pod = worker_pod("a", finished=True)
    members.put_pod(pod.key, None, pod)
    assert names(members, LLAMA) == []


def test_priced_pods_of_no_model_are_found_by_their_namespace():
    """The model was deleted while the operator was down: nobody else takes its costs off."""
    members = Members()
    ours, theirs, plain = (
        worker_pod("ours", cost=-1000),
        worker_pod("theirs", cost=-1, cost_by="kubectl"),
        worker_pod("plain"),
    )
    for pod in (ours, theirs, plain):
        members.put_pod(pod.key, None, pod)
    assert set(members.orphans_priced_by_us("ml")) == {ours.key}
    members.put_model(LLAMA, None)
    assert members.orphans_priced_by_us("ml") == {}
    assert members.orphans_priced_by_us("elsewhere") == {}


LABELS = [{}, {"app": "llama"}, {"tier": "gpu"}, {"app": "llama", "tier": "gpu"}]
KEYS = [LLAMA, QWEN, ObjectKey("ml", "a")]
pod_steps = st.tuples(
    st.just("pod"), st.sampled_from("xyz"), st.sampled_from([None, "llama", "qwen", "a"]), st.sampled_from(LABELS)
)
gone_steps = st.tuples(st.just("gone"), st.sampled_from("xyz"), st.none(), st.none())
model_steps = st.tuples(
    st.just("model"), st.sampled_from(KEYS), st.sampled_from(["absent", None, OF_LLAMA, EVERYTHING]), st.none()
)


@given(st.lists(st.one_of(pod_steps, gone_steps, model_steps), max_size=30))
def test_after_any_order_of_changes_it_is_as_if_built_anew(steps):
    members, pods, models = Members(), {}, {}
    for step, subject, what, labels in steps:
        if step == "model":
            models.pop(subject, None)
            if what == "absent":
                members.remove_model(subject)
            else:
                models[subject] = what
                members.put_model(subject, what)
        else:
            old = pods.pop(subject, None)
            new = None if step == "gone" else worker_pod(subject, model=what, labels=labels)
            members.put_pod(ObjectKey("ml", subject), old, new)
            if new is not None:
                pods[subject] = new
    fresh = Members()
    for pod in pods.values():
        fresh.put_pod(pod.key, None, pod)
    for model, selector in models.items():
        fresh.put_model(model, selector)
    for key in KEYS:
        assert names(members, key) == names(fresh, key)
    for pod in pods.values():
        assert members.model_of(pod) == fresh.model_of(pod)
    if not pods:
        assert members._owned == {}
        assert members._labelled == {}
        assert members._alike["ml"] == {}
