from typing import Any

import pytest

from kvaware_cluster import TokenIdentity
from kvaware_cluster.token_review import identity_of
from kvaware_crds.errors import WireError
from kvaware_engine.observations import ObjectKey

NAME, UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"


def review(**changes: Any) -> dict[str, Any]:
    status = {
        "authenticated": True,
        "audiences": ["kvaware"],
        "user": {"username": "system:serviceaccount:ml:llama", "extra": {NAME: ["llama-0"], UID: ["u-1"]}},
    }
    return {"kind": "TokenReview", "status": status | changes}


def test_a_pods_token_names_the_pod():
    assert identity_of(review(), audiences=["kvaware"]) == TokenIdentity(
        username="system:serviceaccount:ml:llama", pod=ObjectKey("ml", "llama-0"), pod_uid="u-1"
    )


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(review(authenticated=False), id="not authenticated"),
        pytest.param(review(authenticated="true"), id="not quite a boolean"),
        pytest.param({"status": {}}, id="nothing said"),
        pytest.param({}, id="no status"),
        pytest.param(review(audiences=["https://kubernetes.default"]), id="meant for the API server"),
        pytest.param(review(audiences=None), id="a server that knows no audiences"),
        pytest.param(review(audiences="kvaware"), id="no list"),
        pytest.param(review(user={}), id="nobody"),
    ],
)
def test_a_token_that_is_not_for_us_is_nobodys(answer: dict[str, Any]):
    """Whoever steals a token that was meant for another service cannot speak as a worker with it."""
    assert identity_of(answer, audiences=["kvaware"]) is None


def test_without_audiences_any_token_of_the_api_server_will_do():
    identity = identity_of(review(audiences=None), audiences=[])
    assert identity is not None
    assert identity.pod == ObjectKey("ml", "llama-0")


@pytest.mark.parametrize(
    "user",
    [
        pytest.param(
            {"username": "jane", "extra": {NAME: ["llama-0"], UID: ["u-1"]}}, id="a person with a pod's extra"
        ),
        pytest.param({"username": "system:serviceaccount:ml:llama"}, id="an account's token without a pod"),
        pytest.param({"username": "system:serviceaccount:ml:llama", "extra": {NAME: ["llama-0"]}}, id="no UID"),
        pytest.param({"username": "system:serviceaccount:ml", "extra": {NAME: ["p"], UID: ["u"]}}, id="no account"),
        pytest.param(
            {"username": "system:serviceaccount:ml:llama", "extra": {NAME: ["a", "b"], UID: ["u"]}}, id="two pods"
        ),
    ],
)
def test_a_token_that_is_bound_to_no_pod_names_none(user: dict[str, Any]):
    identity = identity_of(review(user=user), audiences=["kvaware"])
    assert identity is not None
    assert (identity.username, identity.pod, identity.pod_uid) == (user["username"], None, None)


@pytest.mark.parametrize("answer", [{"status": []}, review(user="jane"), review(user={"username": 5})])
def test_an_answer_that_is_no_review_is_a_wire_error(answer: dict[str, Any]):
    with pytest.raises(WireError):
        identity_of(answer, audiences=["kvaware"])
