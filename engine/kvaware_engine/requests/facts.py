"""What a worker is, from what it reports, where the API server shows it and what the model's spec says."""

from kvaware_engine.observations import NodeObservation
from kvaware_engine.reports import WorkerPlace, WorkerView
from kvaware_engine.requests.candidates import WorkerFacts
from kvaware_engine.requests.domains import transfer_domain

__all__ = ["worker_facts"]


def worker_facts(
    view: WorkerView,
    place: WorkerPlace,
    node: NodeObservation | None,
    *,
    revision: str,
    block_tokens: int,
    capabilities: frozenset[str],
    reserved_for: frozenset[str] | None,
    publishes_events: bool,
) -> WorkerFacts:
    """Put together what is known of one worker.

    Args:
        view: What it reports.
        place: Where the API server shows it.
        node: That it is on; None: unknown.
        revision: Of the model.
        block_tokens: Of the model, where the worker does not tell.
        capabilities: Of the model's servers, as the spec says; a worker's own join them.
        reserved_for: Tenants that alone may use it; None: anybody.
        publishes_events: Whether its KV events are followed.
    """
    return WorkerFacts(
        worker=view.worker,
        incarnation=view.incarnation,
        role=place.role,
        address=view.address,
        node=place.node,
        rack=node.rack if node else None,
        zone=node.zone if node else None,
        clique=node.clique if node else None,
        capabilities=capabilities.union(view.capabilities),
        transfer_domain=transfer_domain(
            revision=revision,
            block_tokens=view.block_size_tokens or block_tokens,
            gpus=place.gpus,
            told=view.transfer_domain,
        ),
        adapters=None if view.adapters is None else frozenset(view.adapters),
        reserved_for=reserved_for,
        publishes_events=publishes_events,
    )
