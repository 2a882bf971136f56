"""Whether the operator can do its work, in words for ``/readyz``."""

from collections.abc import Mapping

from kvaware_cluster import Kind

__all__ = ["readiness"]


def readiness(
    *,
    leading: bool,
    lease_problem: str | None,
    ended: str | None,
    ages_s: Mapping[Kind, float | None],
    max_age_s: float,
    notes: Mapping[str, str],
) -> tuple[bool, str]:
    """Whether it can, and why not; what hampers it without stopping it stands behind.

    Args:
        leading: A standby is ready: it could take over, and a roll-out must not wait for it to lead.
        lease_problem: Why the lease could not be read or written at the last try: such a standby could not take over.
            A leader's renewal is tried again until it leads no more, and its views tell of the API server.
        ended: Name of a background task that ended by itself; None: all run.
        ages_s: Of each watched kind's view; None: it cannot be listed, or was not yet. Empty on a standby.
        max_age_s: What is still fresh.
        notes: Subject to a sentence.
    Returns: ready, and lines of text.
    """
    lines = []
    if ended is not None:
        lines.append(f"the background task {ended} has ended")
    elif leading:
        for kind, age_s in sorted(ages_s.items()):
            if age_s is None:
                lines.append(f"{kind}: not listed yet, or its CRD or the right to list it is missing")
            elif age_s > max_age_s:
                lines.append(f"{kind}: the view is {age_s:.0f} s old")
    elif lease_problem is not None:
        lines.append(f"the lease cannot be read or written: {lease_problem}")
    ready = not lines
    if ready:
        lines.append("ok" if leading else "ok: waits for the lease, another operator leads")
    lines += [f"{subject}: {sentence}" for subject, sentence in sorted(notes.items())]
    return ready, "\n".join(lines) + "\n"
