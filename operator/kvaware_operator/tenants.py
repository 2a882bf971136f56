"""What every tenant uses, as the extender counts it: one question per poll for all quotas."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from kvaware_crds.errors import KvawareError
from kvaware_engine import TenantView
from kvaware_operator.troubles import Troubles

__all__ = ["Tenants"]


class TenantSource(Protocol):
    """Where use comes from: ``ExtenderClient``."""

    async def tenants(self) -> list[TenantView]:
        """All tenants and what they hold."""
        ...


class Tenants:
    """Kept in memory only; None after a failed question, so that old figures do not look new."""

    def __init__(
        self, source: TenantSource, *, poll_s: float, wanted: Callable[[], bool], changed: Callable[[str], None]
    ) -> None:
        """Ask nothing yet.

        Args:
            source: Asked for all tenants at once.
            poll_s: Between two questions.
            wanted: Whether there is any quota to fill.
            changed: Told of each tenant whose use differs from the last answer.
        """
        self._source = source
        self._poll_s = poll_s
        self._wanted = wanted
        self._changed = changed
        self._views: Mapping[str, TenantView] | None = None
        self._troubles = Troubles()

    def of(self, tenant: str) -> TenantView | None:
        """A tenant's use; None: unknown."""
        return None if self._views is None else self._views.get(tenant)

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            if self._wanted():
                await self._ask()
            await asyncio.sleep(self._poll_s)

    async def _ask(self) -> None:
        before = self._views or {}
        try:
            self._views = {view.tenant: view for view in await self._source.tenants()}
        except KvawareError as error:
            self._troubles.failed("asking for the use of tenants", error)
            self._views = None
            return
        self._troubles.worked("asking for the use of tenants")
        for tenant in self._views.keys() | before.keys():
            if self._views.get(tenant) != before.get(tenant):
                self._changed(tenant)
