"""In which order a worker's batches of KV events came: what follows, what comes again, what is missing."""

from enum import StrEnum

__all__ = ["EventOrder", "Step"]


class Step(StrEnum):
    """How a batch stands to those before it."""

    NEXT = "next"
    AGAIN = "again"
    """It was in a replay."""
    GAP = "gap"
    """Some before it did not come."""
    RESTARTED = "restarted"
    """The server began to count anew: nothing that it told before holds."""


class EventOrder:
    """Of one worker. The sequences of a server that does not restart rise by one."""

    __slots__ = ("_at_s", "_live", "last")

    def __init__(self) -> None:
        self.last: int | None = None
        """Sequence of the last batch that was taken, all before it taken too; None: none was."""
        self._live: int | None = None
        """The last one that the live stream brought."""
        self._at_s = float("-inf")
        """When the server made the last batch that was taken."""

    def live(self, sequence: int, at_s: float) -> Step:
        """Judge a batch of the live stream.

        A replay brings batches that still wait in the live stream, so a sequence that was taken may come again; of a
        server that started again it is younger than what was taken. One that the live stream itself had is a restart
        whatever its clock says.
        """
        live, self._live = self._live, sequence
        if live is not None and sequence <= live:
            return Step.RESTARTED
        if self.last is None or sequence == self.last + 1:
            return Step.NEXT
        if sequence > self.last:
            return Step.GAP
        return Step.RESTARTED if at_s > self._at_s else Step.AGAIN

    def replayed(self, sequence: int) -> Step:
        """Judge a batch of a replay. The first of all may be any: the server keeps only so many."""
        if self.last is None or sequence == self.last + 1:
            return Step.NEXT
        return Step.GAP if sequence > self.last else Step.AGAIN

    def took(self, sequence: int, at_s: float) -> None:
        """A batch is taken."""
        self.last, self._at_s = sequence, at_s

    def start_over(self) -> None:
        """Nothing before counts. What the live stream brought last is remembered."""
        self.last, self._at_s = None, float("-inf")
