"""A modelled worker in real time: it says how it is, and what becomes of each request, as a model server would.

The model keeps its own exact times: a loop that wakes up late tells late, and what it tells is as of when it happened.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, Final

from kvaware_cli.replay.gateway import Gateway
from kvaware_simulator import Happening, ModelledWorker, Outcome, WorkerEvent, WorkerRequest

__all__ = ["HEARTBEAT_S", "PROGRESS_S", "LiveWorker"]

HEARTBEAT_S: Final = 1.0
"""Between two heartbeats."""


PROGRESS_S: Final = 10.0
"""A request of which nothing else is told reports progress so often: a reservation ends 30 s after its last event."""


class LiveWorker:
    """One worker of one policy."""

    def __init__(
        self,
        worker: str,
        modelled: ModelledWorker,
        *,
        model: str,
        gateway: Gateway,
        clock: Callable[[], float],
        answered: Callable[[Outcome], None],
    ) -> None:
        """An idle worker.

        Args:
            worker: Its id.
            modelled: What it is.
            model: Namespace and name of its model.
            gateway: The way to the extender.
            clock: Seconds, as ``modelled`` counts them.
            answered: Told of each first token.
        """
        self.worker = worker
        self._modelled = modelled
        self._model = model
        self._gateway = gateway
        self._clock = clock
        self._answered = answered
        self._placements: dict[str, str] = {}
        """Request → placement."""
        self._told_at_s: dict[str, float] = {}
        """Request → when something was told of it last."""
        self._untold: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self._sent = asyncio.Event()
        self._seq = 0

    def takes(self, request: WorkerRequest) -> bool:
        """Whether the request could ever run here."""
        return self._modelled.takes(request)

    def send(self, request: WorkerRequest, *, placement_id: str) -> None:
        """A request comes."""
        self._placements[request.id] = placement_id
        self._told_at_s[request.id] = self._clock()
        self._happened(self._modelled.submit(request, now_s=self._clock()))
        self._sent.set()

    def finish(self) -> None:
        """Nobody comes any more: run to the end at once. The times are those that it would have had.

        They are not reported: nobody decides by them any more, and it would take as long as the replay itself.
        """
        for each in self._modelled.advance(inf):
            self._count(each)

    async def run(self) -> None:
        """Let its time pass, until cancelled."""
        while True:
            self._happened(self._modelled.advance(self._clock()))
            wait_s = self._modelled.next_at_s() - self._clock()
            try:
                async with asyncio.timeout(None if wait_s == inf else max(wait_s, 0)):
                    await self._sent.wait()
                    self._sent.clear()
            except TimeoutError:
                pass  # something happens now

    async def tell(self) -> None:
        """Report what happened, in order, until cancelled."""
        while True:
            placement_id, event = await self._untold.get()
            try:
                await self._gateway.report(placement_id, event)
            finally:
                self._untold.task_done()

    async def told(self) -> None:
        """Wait until everything is reported."""
        await self._untold.join()

    async def beat(self) -> None:
        """Send heartbeats, until cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self.report_progress()
            await self.beat_once()

    def report_progress(self) -> None:
        """Of requests that wait or decode for long."""
        now_s = self._clock()
        for request, told_at_s in self._told_at_s.items():
            if now_s - told_at_s >= PROGRESS_S:
                self._tell(request, {"type": "progress"})

    async def beat_once(self) -> bool:
        """Returns: whether the heartbeat was taken."""
        figures = self._modelled.figures()
        self._seq += 1
        return await self._gateway.beat(
            self.worker,
            {
                "seq": self._seq,
                "model": self._model,
                "role": "both",
                "block_size": self._modelled.block_tokens,
                "kv_blocks_total": figures.kv_blocks_total,
                "kv_blocks_free": figures.kv_blocks_free,
                "waiting": figures.waiting,
                "running": figures.running,
                "queued_tokens": figures.queued_tokens,
                "batch_size": figures.batch_size,
                "gpu_utilization_ratio": 1.0 if figures.running else 0.0,
            },
        )

    def _happened(self, events: list[WorkerEvent]) -> None:
        for each in events:
            self._count(each)
            event: dict[str, Any] = {"type": each.type.value}
            match each.type:
                case Happening.STARTED:
                    event["queue_wait_ms"] = each.queue_wait_ms
                case Happening.FIRST_TOKEN:
                    event |= {"ttft_ms": each.ttft_ms, "cached_tokens": each.cached_tokens}
                case Happening.FINISHED:
                    event |= {"output_tokens": each.output_tokens, "cached_tokens": each.cached_tokens}
            self._tell(each.request.id, event)
            if each.type is Happening.FINISHED:
                del self._placements[each.request.id], self._told_at_s[each.request.id]

    def _count(self, event: WorkerEvent) -> None:
        if event.type is Happening.FIRST_TOKEN and event.ttft_ms is not None:
            outcome = Outcome(
                worker=self.worker,
                input_tokens=event.request.input_tokens,
                cached_tokens=event.cached_tokens,
                ttft_ms=event.ttft_ms,
            )
            self._answered(outcome)

    def _tell(self, request: str, event: dict[str, Any]) -> None:
        self._told_at_s[request] = self._clock()
        self._untold.put_nowait((self._placements[request], event))
