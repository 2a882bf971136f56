"""Brings the models' fleets to what is believed of their workers, and ends what was reserved on those that are gone."""

from collections.abc import Mapping

from kvaware_engine.observations import ObjectKey
from kvaware_engine.requests.books import Books
from kvaware_engine.requests.fleet import FleetChange
from kvaware_engine.requests.model_state import ModelState
from kvaware_engine.requests.worker_places import WorkerPlaces
from kvaware_engine.workers import Workers

__all__ = ["WorkerFollower"]


class WorkerFollower:
    """When a decision is due; until then ``WorkerPlaces`` notes what changed."""

    __slots__ = ("_books", "_models", "_places", "_workers")

    def __init__(
        self, workers: Workers, places: WorkerPlaces, models: Mapping[ObjectKey, ModelState], books: Books
    ) -> None:
        self._workers = workers
        self._places = places
        self._models = models
        self._books = books

    def follow(self, now_s: float) -> None:
        """Bring the workers that changed to what is believed of them now."""
        places, workers = self._places, self._workers
        for worker in places.changed():
            place = workers.place(worker)
            before = places.model_of.get(worker)
            if before is not None and (place is None or place.model != before):
                self._lose(self._models.get(before), worker, now_s)
            state = None if place is None else self._models.get(place.model)
            if place is None or state is None:
                continue
            places.model_of[worker] = place.model
            node = places.node_of(worker)
            change = state.fleet.follow(
                workers,
                worker,
                node,
                now_s,
                reserved_for=places.reserved_for(node),
                cached_tokens=state.cached_tokens(worker),
            )
            slot = state.fleet.slot_of.get(worker)
            if slot is None:
                places.forget(worker)
            elif change is FleetChange.STARTED_AGAIN:
                facts = state.fleet.facts[slot]
                self._books.lose(worker, now_s, None if facts is None else facts.incarnation)
                state.forget_blocks(slot)
            elif workers.asleep(worker):
                state.forget_blocks(slot)  # a sleeping server holds no blocks (vllm-project/aibrix#2287)

    def _lose(self, state: ModelState | None, worker: str, now_s: float) -> None:
        """A worker is gone from a model's fleet."""
        self._places.forget(worker)
        if state is None:
            return
        slot = state.fleet.slot_of.get(worker)
        self._books.lose(worker, now_s, None)
        if slot is not None:
            state.forget_blocks(slot)
        state.fleet.drop(worker)

    def found(self, worker: str) -> tuple[ModelState, int] | None:
        """A worker's model and slot; None: no fleet has it."""
        model = self._places.model_of.get(worker)
        state = None if model is None else self._models.get(model)
        slot = None if state is None else state.fleet.slot_of.get(worker)
        return None if state is None or slot is None else (state, slot)
