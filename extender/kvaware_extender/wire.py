"""kube-scheduler's extender protocol, v1: bytes in, bytes out, keys exactly as Go names them (wire formats, §1).

By hand and with orjson, because 5,000 names pass through here twice per pod: a model per request would cost more than
the decision.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from kvaware_crds.errors import WireError
from kvaware_engine import FilterVerdict, PackedNames, VictimOffer
from kvaware_extender.packed import render_scores, render_verdict, split_names

__all__ = [
    "BindArgs",
    "OfferedPod",
    "OfferedVictims",
    "decode",
    "parse_bind",
    "parse_offer",
    "parse_victims",
    "render_all_admitted",
    "render_bind",
    "render_filter",
    "render_filter_error",
    "render_priorities",
    "render_victims",
]


class OfferedPod(NamedTuple):
    """One pod and the nodes that kube-scheduler offers for it."""

    pod: dict[str, Any]
    uid: str
    names: Sequence[str]
    items: list[dict[str, Any]] | None
    """The whole nodes, in the order of ``names``; None with ``nodeCacheCapable: true``."""


class OfferedVictims(NamedTuple):
    """One pod and the nodes on which kube-scheduler would kill others for it."""

    pod: dict[str, Any]
    offers: list[VictimOffer]


class BindArgs(NamedTuple):
    """One pod and the node that kube-scheduler chose."""

    namespace: str
    name: str
    uid: str
    node: str


def decode(body: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises: WireError."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as e:
        raise WireError(f"expected a JSON object in UTF-8: {e}") from e
    if not isinstance(value, dict):
        raise WireError(f"expected a JSON object, got {_kind(value)}")
    return value


def parse_offer(body: bytes) -> OfferedPod:
    """Read the request of filter and prioritize, in either mode. Raises: WireError."""
    split = split_names(body)
    args = decode(body if split is None else split[0])
    pod, uid = _pod(args)
    if split is not None:
        return OfferedPod(pod, uid, split[1], None)
    names = args.get("NodeNames")
    if names is not None:
        if not isinstance(names, list):
            raise WireError(f"NodeNames: expected a list of strings, got {_kind(names)}")
        try:
            "".join(names)  # the cheapest check of 5,000 types: 40 µs, a loop takes five times as long
        except TypeError as e:
            raise WireError(f"NodeNames: expected a list of strings: {e}") from e
        return OfferedPod(pod, uid, names, None)
    items = _items(args.get("Nodes"))
    return OfferedPod(pod, uid, [_node_name(item) for item in items], items)


def parse_victims(body: bytes) -> OfferedVictims:
    """Read the request of preempt: victims as UIDs, or as whole pods without the node cache. Raises: WireError."""
    args = decode(body)
    pod, _ = _pod(args)
    for key, uid_of in (("NodeNameToMetaVictims", _meta_uid), ("NodeNameToVictims", _whole_uid)):
        by_node = args.get(key)
        if by_node is None:
            continue
        if not isinstance(by_node, dict):
            raise WireError(f"{key}: expected an object, got {_kind(by_node)}")
        return OfferedVictims(pod, [_offer(f"{key}.{node}", node, each, uid_of) for node, each in by_node.items()])
    return OfferedVictims(pod, [])  # Go writes an empty map as null too


def parse_bind(body: bytes) -> BindArgs:
    """Read the request of bind. Raises: WireError."""
    args = decode(body)
    return BindArgs(*(_text(args, key) for key in ("PodNamespace", "PodName", "PodUID", "Node")))


def render_filter(offer: OfferedPod, verdict: FilterVerdict) -> bytes:
    """The verdict. Refusals are unresolvable ones: on others kube-scheduler hot-loops beside lower-priority pods.

    All but one: a nominated node that its pod's victims are leaving. Were it unresolvable, kube-scheduler would preempt
    somewhere else; so it waits for those that terminate there (PodEligibleToPreemptOthers in 1.37.2).
    """
    if isinstance(offer.names, PackedNames):
        return render_verdict(offer.names, verdict)
    admitted, refused = verdict.admitted, verdict.refused
    nodes: dict[str, Any] | None = None
    names: list[str] | None = admitted
    if offer.items is not None:
        kept = set(admitted)
        items = [item for name, item in zip(offer.names, offer.items, strict=True) if name in kept]
        nodes, names = {"metadata": {}, "items": items}, None
    return orjson.dumps(
        {
            "Nodes": nodes,
            "NodeNames": names,
            "FailedNodes": verdict.passing,
            "FailedAndUnresolvableNodes": refused,
            "Error": "",
        }
    )


def render_all_admitted(offer: OfferedPod) -> bytes:
    """Every offered node back, for a pod that is not ours."""
    everything = np.zeros(len(offer.names), dtype=np.int8)
    return render_filter(offer, FilterVerdict(nodes=offer.names, codes=everything, reason=None, counts={}))


def render_filter_error(text: str) -> bytes:
    """kube-scheduler takes the attempt back and tries again after 1 to 10 s."""
    return orjson.dumps(
        {"Nodes": None, "NodeNames": None, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": text}
    )


def render_priorities(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """``[{"Host": name, "Score": 0..10}]``; a score is an integer literal, or kube-scheduler cannot decode it."""
    if isinstance(names, PackedNames):
        return render_scores(names, scores)
    return orjson.dumps([{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)])


def render_victims(kept: Iterable[VictimOffer]) -> bytes:
    """The reply of preempt, always by UIDs. A node that is left out is not preempted on; no node: nobody dies."""
    return orjson.dumps(
        {
            "NodeNameToMetaVictims": {
                offer.node: {
                    "Pods": [{"UID": uid} for uid in offer.victims],
                    "NumPDBViolations": offer.pdb_violations,
                }
                for offer in kept
            }
        }
    )


def render_bind(error: str) -> bytes:
    """Empty text: bound."""
    return orjson.dumps({"Error": error})


def _pod(args: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The pod in question and its UID."""
    pod = args.get("Pod")
    if not isinstance(pod, dict):
        raise WireError(f"Pod: expected an object, got {_kind(pod)}")
    metadata = pod.get("metadata")
    if not isinstance(metadata, dict):
        raise WireError(f"Pod.metadata: expected an object, got {_kind(metadata)}")
    uid = metadata.get("uid")
    if not isinstance(uid, str) or not uid:
        raise WireError(f"Pod.metadata.uid: expected a non-empty string, got {_kind(uid)}")
    return pod, uid


def _offer(where: str, node: str, victims: Any, uid_of: Callable[[dict[str, Any]], Any]) -> VictimOffer:
    if victims is None:
        return VictimOffer(node=node, victims=())
    if not isinstance(victims, dict):
        raise WireError(f"{where}: expected an object, got {_kind(victims)}")
    pods, violations = victims.get("Pods"), victims.get("NumPDBViolations", 0)
    if pods is None:
        pods = []
    if not isinstance(pods, list):
        raise WireError(f"{where}.Pods: expected a list, got {_kind(pods)}")
    if type(violations) is not int:
        raise WireError(f"{where}.NumPDBViolations: expected an integer, got {_kind(violations)}")
    uids: dict[str, None] = {}
    for pod in pods:
        uid = uid_of(pod) if isinstance(pod, dict) else None
        if not isinstance(uid, str) or not uid:
            raise WireError(f"{where}.Pods: expected pods with a UID, got {_kind(pod)} without one")
        uids[uid] = None
    return VictimOffer(node=node, victims=tuple(uids), pdb_violations=violations)


def _meta_uid(pod: dict[str, Any]) -> Any:
    return pod.get("UID")


def _whole_uid(pod: dict[str, Any]) -> Any:
    metadata = pod.get("metadata")
    return metadata.get("uid") if isinstance(metadata, dict) else None


def _items(nodes: Any) -> list[dict[str, Any]]:
    if nodes is None:
        raise WireError("NodeNames and Nodes: expected one of them, got null for both")
    if not isinstance(nodes, dict):
        raise WireError(f"Nodes: expected an object with items, got {_kind(nodes)}")
    items = nodes.get("items")
    if items is None:  # Go writes an empty list as null
        return []
    if not isinstance(items, list):
        raise WireError(f"Nodes.items: expected a list, got {_kind(items)}")
    return items


def _node_name(item: Any) -> str:
    try:
        name = item["metadata"]["name"]
    except (TypeError, KeyError, IndexError) as e:
        raise WireError("Nodes.items: expected nodes with metadata.name") from e
    if not isinstance(name, str):
        raise WireError(f"Nodes.items: metadata.name: expected a string, got {_kind(name)}")
    return name


def _text(args: Mapping[str, Any], key: str) -> str:
    value = args.get(key)
    if not isinstance(value, str) or not value:
        raise WireError(f"{key}: expected a non-empty string, got {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    """The JSON word for a value's type, never the value: it may be large, or none of a log's business."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case "":
            return "an empty string"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"
