"""What a request in flight holds beside its place in the ledger, and how that is given back at its end."""

from collections.abc import Mapping

from kvaware_engine.observations import ObjectKey
from kvaware_engine.requests.ledger import RequestLedger, Reservation
from kvaware_engine.requests.limits import RequestLimits
from kvaware_engine.requests.model_state import ModelState
from kvaware_engine.requests.words import Action

__all__ = ["Books"]


class Books:
    """Of all models: figures and blocks of workers, and what counts for tenants."""

    __slots__ = ("_ledger", "_limits", "_models")

    def __init__(self, models: Mapping[ObjectKey, ModelState], ledger: RequestLedger, limits: RequestLimits) -> None:
        self._models = models
        self._ledger = ledger
        self._limits = limits

    def charge_transfers(self, reservation: Reservation, now_s: float) -> None:
        """What is brought from elsewhere, for either part, counts for its tenant; copies until the first token."""
        placement, tenant = reservation.placement, reservation.tenant
        for option in (placement.option, placement.prefill):
            if option is None or not option.transfer_bytes:
                continue
            if option.action is Action.MIGRATE:
                self._limits.charge_migration(tenant, option.transfer_bytes, now_s)
                reservation.copies += 1
            else:
                self._limits.charge_remote_read(tenant, option.transfer_bytes, now_s)

    def let_go(self, state: ModelState, reservation: Reservation, now_s: float, *, keep: bool) -> None:
        """Take what it holds out of the figures and the index; its tenant's bill stays as it is."""
        fleet = state.fleet
        fleet.discharge(reservation, now_s)
        if reservation.prefill is not None:
            fleet.discharge(reservation.prefill, now_s)
        state.unassume(reservation, keep=keep)
        if reservation.copies:
            self.copies_end(reservation)

    def copies_end(self, reservation: Reservation) -> None:
        """Its copies are made, or will not be."""
        for _ in range(reservation.copies):
            self._limits.end_migration(reservation.tenant)
        reservation.copies = 0

    def ended(self, reservation: Reservation, now_s: float, *, keep: bool = False) -> None:
        """Give back what one held that the ledger has ended."""
        self.let_go(self._models[reservation.model], reservation, now_s, keep=keep)
        self._limits.release(reservation.tenant)

    def lose(self, worker: str, now_s: float, incarnation: str | None) -> None:
        """What a worker holds is gone, but for that of an incarnation; None: all of it."""
        for reservation in self._ledger.lose(worker, now_s, incarnation=incarnation):
            self.ended(reservation, now_s)
