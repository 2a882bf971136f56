"""Whether the view of the cluster may be answered from, and why not."""

from typing import Final

from kvaware_crds.errors import StaleViewError
from kvaware_extender.settings import StaleView
from kvaware_extender.view import View

__all__ = ["Freshness"]


NEVER_LISTED: Final = "the cluster has not been read completely yet"


class Freshness:
    """The rule of ``staleView``: old views refuse or not, unknown kinds refuse always (unknown is not unlimited)."""

    def __init__(self, view: View, *, stale_view: StaleView, max_view_age_s: float) -> None:
        self._view = view
        self._synced = False
        self._max_age_s = max_view_age_s if stale_view is StaleView.REFUSE else float("inf")

    def stale(self) -> bool:
        """Whether our pods are refused now. Called on the hot path: one pass over five kinds.

        Until the first complete view they are, under either rule: before the exporters were asked a GPU that somebody
        else fills looks free.
        """
        if not self._synced:
            self._synced = self._view.synced()  # it never turns back
            if not self._synced:
                return True
        max_age_s = self._max_age_s
        return any(age_s is None or age_s > max_age_s for age_s in self._view.ages().values())

    def require(self) -> None:
        """Let only a fresh view be answered from. Raises: StaleViewError."""
        problem = self.problem()
        if problem is not None:
            raise StaleViewError(f"the view of the cluster is stale: {problem}")

    def problem(self) -> str | None:
        """Why our pods are refused now, for people; None: they are not."""
        if not self._view.synced():
            return NEVER_LISTED
        ages = self._view.ages()
        unknown = sorted(kind for kind, age_s in ages.items() if age_s is None)
        if unknown:
            return f"these kinds cannot be listed: {', '.join(unknown)}"
        old = sorted(kind for kind, age_s in ages.items() if age_s is not None and age_s > self._max_age_s)
        if old:
            return f"older than {self._max_age_s:g} s: {', '.join(old)}"
        return None
