"""Asks the API server whose a bearer token is."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvaware_cluster.kubernetes_http import KubernetesHttp, object_of
from kvaware_cluster.parse.wire import mapping, string
from kvaware_cluster.source import TokenIdentity
from kvaware_crds.errors import UpstreamError, WireError
from kvaware_engine.observations import ObjectKey

__all__ = ["identity_of", "review_token"]

PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
WHAT: Final = "token review"
MAX_TOKEN_CHARACTERS: Final = 16_384
"""A service account's token has about 1,000."""
SERVICE_ACCOUNT: Final = "system:serviceaccount:"
POD_NAME: Final = "authentication.kubernetes.io/pod-name"
POD_UID: Final = "authentication.kubernetes.io/pod-uid"


async def review_token(http: KubernetesHttp, token: str, *, audiences: Sequence[str]) -> TokenIdentity | None:
    """Whose token this is; None when it is nobody's, or not meant for one of the audiences.

    Needs the right to create ``tokenreviews`` (cluster role ``system:auth-delegator``). It is one request each time:
    callers remember the answer.

    Args:
        http: The API server.
        token: As it came; it is in no error and no log.
        audiences: For whom it must be meant, at least one of them. Empty: for the API server itself.
    """
    if not 0 < len(token) <= MAX_TOKEN_CHARACTERS:
        return None
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": list(audiences)},
    }
    answer = object_of(await http.write("POST", PATH, body, what=WHAT), what=WHAT)
    try:
        return identity_of(answer, audiences=audiences)
    except WireError as error:
        raise UpstreamError(f"{WHAT}: {error}") from error


def identity_of(review: dict[str, Any], *, audiences: Sequence[str]) -> TokenIdentity | None:
    """Read an answered TokenReview.

    A server that does not know of audiences leaves them out of its answer: a token for itself must not pass as one
    for us.
    Raises: WireError when it is none.
    """
    status = mapping(review, "status", "tokenreview")
    if status.get("authenticated") is not True:
        return None
    if audiences:
        meant_for = status.get("audiences")
        if type(meant_for) is not list or not set(audiences).intersection(
            each for each in meant_for if type(each) is str
        ):
            return None
    user = mapping(status, "user", "tokenreview.status")
    username = string(user, "username", "tokenreview.status.user")
    if not username:
        return None
    extra = mapping(user, "extra", "tokenreview.status.user")
    namespace, _, account = username.removeprefix(SERVICE_ACCOUNT).partition(":")
    pod, uid = _only(extra, POD_NAME), _only(extra, POD_UID)
    if not username.startswith(SERVICE_ACCOUNT) or not namespace or not account or pod is None or uid is None:
        return TokenIdentity(username=username, pod=None, pod_uid=None)
    return TokenIdentity(username=username, pod=ObjectKey(namespace, pod), pod_uid=uid)


def _only(extra: Mapping[str, Any], key: str) -> str | None:
    """The one value under a key."""
    values = extra.get(key)
    return values[0] if type(values) is list and len(values) == 1 and type(values[0]) is str and values[0] else None
