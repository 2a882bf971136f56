"""Why a remote read or a copy was not among a worker's options: the first condition of ``transfers.py`` that fails."""

from kvaware_engine.requests.candidates import Candidates, WorkerFacts
from kvaware_engine.requests.costs import expected_tokens
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.reach import MIGRATE, PULL_BY_PREFILL, PULL_FROM_PEER, SHARED_STORE
from kvaware_engine.requests.transfers import Source, sources_of
from kvaware_engine.requests.words import Action

__all__ = ["why_not"]

_NEEDED = {
    Action.REMOTE_READ: (PULL_FROM_PEER, SHARED_STORE, PULL_BY_PREFILL),
    Action.MIGRATE: (MIGRATE,),
}
"""Any of these, at both."""
_VERB = {Action.REMOTE_READ: "reading", Action.MIGRATE: "copying"}


def why_not(candidates: Candidates, slot: int, action: Action) -> str:
    """Say it, as a clause.

    Args:
        candidates: What the decision saw.
        slot: The worker without that option.
        action: ``remote_read`` or ``migrate``.
    Raises: ValueError where it was offered.
    """
    if candidates.settings.costs.sources_max < 1:
        return "no sources are looked at (sources_max is 0)"
    if candidates.deepest_tokens <= 0:
        return "nobody holds any of the prompt"
    facts = candidates.facts[slot]
    held = expected_tokens(
        candidates.matched_tokens.item(slot), confidence_ratio=candidates.figures.item(Figure.CONFIDENCE_RATIO, slot)
    )
    sources = [source for source in sources_of(candidates) if source.slot != slot and source.tokens > held]
    if facts is None or not sources:
        return "no other worker that is heard is expected to hold more"
    if candidates.bytes_per_token is None:
        return "the size of a token's KV cache is unknown, so no transfer can be priced"
    return _of_source(candidates, facts, sources[0], action, held=held)


def _of_source(candidates: Candidates, facts: WorkerFacts, source: Source, action: Action, *, held: float) -> str:
    """Of the worker that holds most: what stands between the two."""
    there = source.facts
    if there.transfer_domain != facts.transfer_domain:
        return (
            f"{there.worker} and {facts.worker} are in different transfer domains "
            f"({there.transfer_domain!r} and {facts.transfer_domain!r})"
        )
    needed = _NEEDED[action]
    if facts.capabilities.isdisjoint(needed) or there.capabilities.isdisjoint(needed):
        lacking = facts if facts.capabilities.isdisjoint(needed) else there
        what = "the capability" if len(needed) == 1 else "all of the capabilities"
        return f"{lacking.worker} lacks {what} {', '.join(needed)}"
    if (facts.capabilities & there.capabilities).isdisjoint(needed):
        return f"{there.worker} and {facts.worker} have none in common of {', '.join(needed)}"
    limit = candidates.remote_bytes if action is Action.REMOTE_READ else candidates.migration_bytes
    needs = (source.tokens - held) * (candidates.bytes_per_token or 0.0)
    if limit is None or needs <= limit:
        raise ValueError(f"{action}: expected one that was not offered at {facts.worker}")
    return f"{_VERB[action]} takes {needs / 1e6:,.1f} MB, and the tenant may move {limit / 1e6:,.1f} MB now"
