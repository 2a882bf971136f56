"""Conditions: what was found about an object now, beside what its status said before, becomes what it says next.

A condition that stays as it is keeps every byte, its time included: a status that is written again because of a new
time wakes its own writer for ever (strimzi/strimzi-kafka-operator#13079).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from kvaware_crds import ConditionStatus, ConditionType

__all__ = ["ABNORMAL", "Finding", "named", "settle"]

MAX_MESSAGE_CHARACTERS: Final = 1024
"""The CRD allows 32,768; nobody reads them."""

ABNORMAL: Final = frozenset(ConditionType) - {ConditionType.ACCEPTED, ConditionType.READY, ConditionType.SCALABLE}
"""Types that are about trouble: they are left out until they are True or Unknown for the first time."""

_ORDER: Final = {str(type_): place for place, type_ in enumerate(ConditionType)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is true, false or unknown about an object now."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    """One CamelCase word."""
    message: str = ""
    """A sentence; without figures that change although nothing happened."""

    @classmethod
    def true(cls, type_: ConditionType, reason: str, message: str = "") -> "Finding":
        """It is so."""
        return cls(type=type_, status=ConditionStatus.TRUE, reason=reason, message=message)

    @classmethod
    def false(cls, type_: ConditionType, reason: str, message: str = "") -> "Finding":
        """It is not so."""
        return cls(type=type_, status=ConditionStatus.FALSE, reason=reason, message=message)

    @classmethod
    def unknown(cls, type_: ConditionType, reason: str, message: str = "") -> "Finding":
        """Nobody can tell."""
        return cls(type=type_, status=ConditionStatus.UNKNOWN, reason=reason, message=message)


def settle(
    before: Iterable[Mapping[str, Any]],
    findings: Iterable[Finding],
    *,
    generation: int,
    now: datetime,
    kept: Collection[ConditionType] = (),
) -> list[dict[str, Any]]:
    """The conditions to write.

    Args:
        before: Those of the present status, as the API server has them.
        findings: At most one per type. A type that is not among them and is about trouble goes to False if it was
            there; any other type is left as it was.
        generation: Of the spec that the findings are about.
        now: For those whose status changes.
        kept: Types that nothing is known about now: they stay as they were.
    Returns: In the order of ``ConditionType``, those of types unknown here last.
    """
    old = {each["type"]: each for each in before if isinstance(each.get("type"), str)}
    found = {str(finding.type): finding for finding in findings}
    for type_ in ABNORMAL.difference(kept):
        if str(type_) in old and str(type_) not in found:
            found[str(type_)] = Finding.false(type_, "Resolved")
    settled = {
        type_: _settled(old.get(type_), finding, generation=generation, now=now)
        for type_, finding in found.items()
        if not _left_out(old.get(type_), finding)
    }
    others = {type_: dict(each) for type_, each in old.items() if type_ not in settled}
    return [each for _, each in sorted({**others, **settled}.items(), key=lambda item: _place(item[0]))]


def named(names: Sequence[str], *, shown: int = 3) -> str:
    """Some names of many: the text stays short, and the same while the first ones stay."""
    listed = sorted(names)
    more = len(listed) - shown
    return ", ".join(listed[:shown]) + (f" and {more} more" if more > 0 else "")


def _left_out(old: Mapping[str, Any] | None, finding: Finding) -> bool:
    return old is None and finding.type in ABNORMAL and finding.status is ConditionStatus.FALSE


def _settled(old: Mapping[str, Any] | None, finding: Finding, *, generation: int, now: datetime) -> dict[str, Any]:
    since = None
    if old is not None and old.get("status") == finding.status.value:
        since = old.get("lastTransitionTime")
    return {
        "type": finding.type.value,
        "status": finding.status.value,
        "observedGeneration": generation,
        "lastTransitionTime": since or now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "reason": finding.reason,
        "message": finding.message[:MAX_MESSAGE_CHARACTERS],
    }


def _place(type_: str) -> tuple[int, str]:
    return (_ORDER.get(type_, len(_ORDER)), type_)
