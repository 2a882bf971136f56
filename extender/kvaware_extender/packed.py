"""The list of node names inside a request, and answers about it, without a Python string per name.

kube-scheduler writes ``…,"NodeNames":["a","b"]}`` last and without spaces. Where a request looks exactly like that
and the names need no escapes, they stay bytes from socket to socket (``kvaware_engine.PackedNames``); whatever looks
different takes the ordinary way through a JSON parser and says the same.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from kvaware_engine import CODE_OF_REASON, PASSING, REASON_OF_CODE, REFUSAL_TEXTS, FilterVerdict, PackedNames

__all__ = ["render_scores", "render_verdict", "split_names"]

IntArray = npt.NDArray[np.int64]

_KEY: Final = b'"NodeNames":['
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_BETWEEN: Final = b'","'
_TOP_SCORE: Final = 10
_HOST: Final = b'{"Host":"'


def split_names(body: bytes) -> tuple[bytes, PackedNames] | None:
    """Take the names out of a request.

    Returns: The body with an empty list in their place, and the names; None where the list is not written the plain
        way. The rest is not looked at: a JSON parser has to say whether it is JSON. (A quote inside a JSON string has
        a backslash before it, so the key can only be found as a key.)
    """
    at = body.rfind(_KEY)
    if at < 0 or not body.endswith(b"]}"):
        return None
    begin, end = at + len(_KEY), len(body) - 2
    text = body[begin:end]
    characters = np.frombuffer(text, dtype=np.uint8)
    quotes = np.flatnonzero(characters == _QUOTE)
    if len(quotes) < 2 or len(quotes) % 2 or quotes[0] != 0 or quotes[-1] != len(text) - 1:
        return None
    opening, closing = quotes[0::2], quotes[1::2]
    if (opening[1:] - closing[:-1] != len(_BETWEEN) - 1).any() or (characters[closing[:-1] + 1] != ord(",")).any():
        return None
    lengths = closing - opening - 1
    # Printable ASCII without backslashes stands in JSON as it is.
    if (lengths < 1).any() or characters.min() <= 0x20 or characters.max() >= 0x7F or (characters == _BACKSLASH).any():
        return None
    return body[:begin] + b"]}", PackedNames(text, opening + 1, lengths)


def render_verdict(names: PackedNames, verdict: FilterVerdict) -> bytes:
    """The reply of filter, as ``wire.render_filter`` writes it; the nodes of one length stand together."""
    admitted: list[bytes] = []
    refused: list[bytes] = []
    passing: list[bytes] = []
    if verdict.reason is not None:
        # One entry is enough: kube-scheduler takes a node that is left out for unresolvable as well.
        refused.append(f'"{min(names)}":"{REFUSAL_TEXTS[verdict.reason]}",'.encode())
    else:
        codes = [0, *(CODE_OF_REASON[reason] for reason in verdict.counts)]
        for length, positions in names.groups():
            mine = verdict.codes[positions]
            for code in codes:
                chosen = positions if len(codes) == 1 else positions[mine == code]
                if len(chosen):
                    reason = REASON_OF_CODE[code]
                    after = b'",' if reason is None else f'":"{REFUSAL_TEXTS[reason]}",'.encode()
                    records = _records(names, chosen, length, b'"', after)
                    into = admitted if reason is None else passing if reason in PASSING else refused
                    into.append(records.tobytes())
    return b"".join(
        (
            b'{"Nodes":null,"NodeNames":[',
            b"".join(admitted)[:-1],
            b'],"FailedNodes":{',
            b"".join(passing)[:-1],
            b'},"FailedAndUnresolvableNodes":{',
            b"".join(refused)[:-1],
            b'},"Error":""}',
        )
    )


def render_scores(names: PackedNames, scores: Sequence[int]) -> bytes:
    """The reply of prioritize. A score is an integer literal, or kube-scheduler cannot decode it."""
    values = np.asarray(scores, dtype=np.int64)
    parts: list[bytes] = []
    for length, positions in names.groups():
        mine = values[positions]
        below_ten = mine < _TOP_SCORE
        records = _records(names, positions[below_ten], length, _HOST, b'","Score":0},')
        records.view(np.uint8).reshape(len(records), records.itemsize)[:, -len("0},")] += mine[below_ten].astype(
            np.uint8
        )
        parts.append(records.tobytes())
        first_choice = positions[~below_ten].tolist()
        parts.extend(f'{{"Host":"{names[position]}","Score":{_TOP_SCORE}}},'.encode() for position in first_choice)
    return b"[" + b"".join(parts)[:-1] + b"]"


def _records(names: PackedNames, positions: IntArray, length: int, before: bytes, after: bytes) -> npt.NDArray[np.void]:
    """``before`` + name + ``after`` for each of the names, all of one length. Shape (positions,)."""
    fields = [("before", f"V{len(before)}"), ("name", f"V{length}"), ("after", f"V{len(after)}")]
    records = np.empty(len(positions), dtype=fields)
    records["before"] = np.void(before)
    records["name"] = names.characters(positions, length)
    records["after"] = np.void(after)
    return records
