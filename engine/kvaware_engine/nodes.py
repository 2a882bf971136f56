"""The nodes as they are observed: what the API server and the exporters tell of each, put into its row of the fleet."""

from collections.abc import Sequence

from kvaware_engine.decisions import NodeView
from kvaware_engine.explain import node_view
from kvaware_engine.findings import Findings
from kvaware_engine.fleet import Fleet, NodeRow
from kvaware_engine.ledger import Ledger
from kvaware_engine.observations import NodeObservation, NodeUse
from kvaware_engine.places import Places
from kvaware_engine.tenants import Tenants
from kvaware_engine.use_age import UseAges
from kvaware_engine.what_if import Version

__all__ = ["Nodes"]


class Nodes:
    """Writes rows of the fleet, but for bookings. One owner; every method is synchronous.

    Args:
        fleet: The rows.
        ages: Prices the age of exporter figures; the fleet reads its margins.
        tenants: For whom nodes are reserved.
        places: Hears which weights a node lists, and that its disk is gone.
        findings: Hears of every scrape.
        ledger: What pods hold on a node outlives it.
        version: Grows with what changes.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        ages: UseAges,
        tenants: Tenants,
        places: Places,
        findings: Findings,
        ledger: Ledger,
        version: Version,
    ) -> None:
        self._fleet = fleet
        self._ages = ages
        self._tenants = tenants
        self._places = places
        self._findings = findings
        self._ledger = ledger
        self._version = version

    def observe(self, name: str, node: NodeObservation | None, *, now_s: float) -> None:
        """A node came, changed, or (None) went. What pods hold on it stays booked until they are gone."""
        row = self._fleet.get(name)
        if (row.node if row is not None else None) == node:
            return
        row = self._fleet.row(name)
        before = row.node.weights if row.node is not None else ()
        after = node.weights if node is not None else ()
        row.node = node
        if before != after:
            self._places.node_lists(name, after, before=before)
        self._place(row)
        self._fleet.mark((name,))
        self._version.grow()
        if node is None:
            row.use = None
            self._findings.scraped(name, None, now_s=now_s)
            self._ages.forget(name)
            self._places.node_gone(name)  # another machine of that name has nothing on its disk
            self._drop_if_empty(row)

    def observe_use(self, name: str, use: NodeUse | None, *, now_s: float) -> None:
        """An exporter's figures of one node; None: it is not heard any more. A node may be seen after its figures."""
        if use is None and self._fleet.get(name) is None:
            return
        row = self._fleet.row(name)
        if use is not None and row.use is not None and use.observed_at_s < row.use.observed_at_s:
            return  # of two sources the later observation holds, whichever arrives last
        row.use = use
        self._forget_if_too_old(row, now_s=now_s)
        self._price_age(row, now_s=now_s)
        self._findings.scraped(name, row.use, now_s=now_s)
        if use is None:
            self._drop_if_empty(row)

    def tick(self, now_s: float) -> None:
        """Exporter figures age."""
        for row in self._fleet:
            if row.use is None:
                continue
            too_old = self._forget_if_too_old(row, now_s=now_s)
            if too_old or not self._ages.is_priced(row, now_s=now_s):
                self._price_age(row, now_s=now_s)

    def quotas_changed(self) -> None:
        """Nodes may be reserved for others now."""
        for row in self._fleet:
            self._place(row)

    def views(self, names: Sequence[str] | None, *, now_s: float) -> list[NodeView]:
        """The named (default: all) nodes with what each GPU holds; unknown names are left out."""
        self._ledger.flush()
        views = []
        for name in names if names is not None else self._fleet.names():
            row = self._fleet.get(name)
            if row is None or row.node is None:
                continue
            views.append(
                node_view(
                    row,
                    fleet=self._fleet,
                    reserved_for=self._owner(row),
                    confidence_ratio=float(self._fleet.confidence[row.index]),
                    use_age_s=now_s - row.use.observed_at_s if row.use is not None else None,
                )
            )
        return views

    def _place(self, row: NodeRow) -> None:
        self._fleet.place(row, owner=self._owner(row))
        self._write_confidence(row)

    def _owner(self, row: NodeRow) -> str | None:
        return self._tenants.owner_of_node(row.node.labels) if row.node is not None else None

    def _forget_if_too_old(self, row: NodeRow, *, now_s: float) -> bool:
        too_old = self._ages.too_old(row, now_s=now_s)
        if too_old:
            row.use = None
            self._findings.scraped(row.name, None, now_s=now_s)
        return too_old

    def _price_age(self, row: NodeRow, *, now_s: float) -> None:
        self._ages.price(row, now_s=now_s)
        self._write_confidence(row)
        self._fleet.mark((row.name,))

    def _write_confidence(self, row: NodeRow) -> None:
        ratio = self._ages.confidence_ratio(row)
        if self._fleet.confidence[row.index] != ratio:
            self._fleet.confidence[row.index] = ratio
            self._version.grow()

    def _drop_if_empty(self, row: NodeRow) -> None:
        self._ledger.flush()
        self._fleet.drop_if_empty(row)
