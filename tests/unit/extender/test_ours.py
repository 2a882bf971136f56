"""The cheap look never loses a pod that is ours."""

from hypothesis import given
from hypothesis import strategies as st

from kvaware_cluster import parse_pod
from kvaware_crds.errors import WireError
from kvaware_engine import Engine
from kvaware_extender.ours import may_be_ours

OURS = "kvaware-scheduler"

amounts = st.one_of(
    st.none(),
    st.just([]),
    st.dictionaries(
        st.sampled_from(
            ["cpu", "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "amd.com/gpu", "x"]
        ),
        st.sampled_from(["0", "1", 1, 0, "2.5", "-1", "", None, "1k"]),
        max_size=3,
    ),
)
containers = st.one_of(
    st.none(),
    st.just("containers"),
    st.lists(
        st.one_of(
            st.just(7),
            st.fixed_dictionaries(
                {},
                optional={
                    "resources": st.one_of(
                        st.none(),
                        st.just("r"),
                        st.fixed_dictionaries({}, optional={"limits": amounts, "requests": amounts}),
                    ),
                    "restartPolicy": st.sampled_from(["Always", None]),
                },
            ),
        ),
        max_size=2,
    ),
)
labels = st.one_of(
    st.none(),
    st.just([]),
    st.just("labels"),
    st.dictionaries(st.sampled_from(["kvaware.io/model", "app"]), st.sampled_from(["", "llama", None, 7]), max_size=2),
)
pods = st.fixed_dictionaries(
    {"metadata": st.fixed_dictionaries({"uid": st.just("u"), "name": st.just("p")}, optional={"labels": labels})},
    optional={
        "spec": st.one_of(
            st.none(),
            st.just("spec"),
            st.fixed_dictionaries(
                {},
                optional={
                    "schedulerName": st.sampled_from([OURS, "default-scheduler", None, 7]),
                    "containers": containers,
                    "initContainers": containers,
                    "overhead": amounts,
                },
            ),
        )
    },
)


@given(pod=pods)
def test_what_the_cheap_look_passes_is_not_ours_by_the_full_reading(pod):
    """Passed without a look it would land anywhere; nothing reserves its HBM."""
    if may_be_ours(pod, scheduler_name=OURS):
        return
    try:
        seen = parse_pod(pod)
    except WireError:
        return  # no pod at all: the API server would not have taken it
    assert seen is None or not Engine().is_ours(seen)


def test_the_cheap_look_passes_what_most_pods_look_like():
    """Else every pod of the cluster would pay for the full reading."""
    web = {"metadata": {"labels": {"app": "web"}}, "spec": {"schedulerName": OURS, "containers": [{"resources": {}}]}}
    gpu = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, "metadata": {}}
    assert not may_be_ours(web, scheduler_name=OURS)
    assert not may_be_ours(gpu, scheduler_name=OURS)
