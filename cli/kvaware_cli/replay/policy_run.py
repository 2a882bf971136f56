"""One policy's share of a replay: its own model, its own workers, the same requests at the same times."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from kvaware_cli.errors import ServerError
from kvaware_cli.replay.gateway import Gateway, Placed, Refused
from kvaware_cli.replay.live_worker import LiveWorker
from kvaware_cli.replay.scene import KV_BLOCKS, NAMESPACE, model_name, worker_ids
from kvaware_engine import HardwareProfile
from kvaware_simulator import BLOCK_TOKENS, ModelledWorker, Outcome, Tally, TraceRequest, WorkerRequest, tally

__all__ = ["PolicyRun"]

KNOWN_WITHIN_S: Final = 10.0
"""The extender knows its workers within a second of its start; a busy machine gets more."""
ATTEMPTS_MAX: Final = 10
"""Workers that are asked for one request, whatever the extender says; its own limit is 3."""


class PolicyRun:
    """A gateway with its workers."""

    def __init__(
        self,
        policy: str,
        *,
        workers: int,
        profile: HardwareProfile,
        gateway: Gateway,
        clock: Callable[[], float],
        progressed: Callable[[], None],
    ) -> None:
        """Idle workers.

        Args:
            policy: Its name.
            workers: How many.
            profile: How fast each of them is.
            gateway: The way to the extender.
            clock: Seconds since the replay's beginning.
            progressed: Told whenever a request has been placed or refused.
        """
        self.policy = policy
        self.placements: list[str] = []
        self.refusals: Counter[str] = Counter()
        """By code."""
        self.late_s = 0.0
        """By how much a request came later to its worker than it was due, at most."""
        self._outcomes: list[Outcome] = []
        self._gateway = gateway
        self._clock = clock
        self._progressed = progressed
        self._workers = {
            each: LiveWorker(
                each,
                ModelledWorker(profile, kv_blocks=KV_BLOCKS, block_tokens=BLOCK_TOKENS, now_s=clock()),
                model=f"{NAMESPACE}/{model_name(policy)}",
                gateway=gateway,
                clock=clock,
                answered=self._outcomes.append,
            )
            for each in worker_ids(policy, workers)
        }

    def tally(self) -> Tally:
        """What it came to."""
        return tally(self._outcomes, refused=self.refusals.total(), workers=len(self._workers))

    async def greet(self) -> None:
        """Send every worker's first heartbeat. Raises: ServerError when the extender does not get to know them."""
        deadline_s = self._clock() + KNOWN_WITHIN_S
        for worker in self._workers.values():
            while not await worker.beat_once():
                if self._clock() > deadline_s:
                    raise ServerError(f"the extender took no heartbeat of {worker.worker} in {KNOWN_WITHIN_S:.0f} s")
                await asyncio.sleep(0.25)  # the extender refuses a second one within 0.2 s

    async def replay(self, requests: Sequence[TraceRequest], times_s: Sequence[float]) -> None:
        """Send each request when it is due, then let the workers run to their end.

        Raises: ServerError when the extender fails.
        """
        async with asyncio.TaskGroup() as group:
            workers = self._workers.values()
            telling = [group.create_task(each.tell(), name=f"tell-{each.worker}") for each in workers]
            living = [group.create_task(each.run(), name=f"run-{each.worker}") for each in workers]
            living += [group.create_task(each.beat(), name=f"beat-{each.worker}") for each in workers]
            async with asyncio.TaskGroup() as sending:
                for number, (request, due_s) in enumerate(zip(requests, times_s, strict=True)):
                    await asyncio.sleep(max(0.0, due_s - self._clock()))
                    sending.create_task(self._send(f"{self.policy}-{number}", request, due_s), name=f"send-{number}")
            for task in living:  # before the workers run ahead: from then on the clock is behind them
                task.cancel()
            for worker in workers:
                worker.finish()
            for worker in workers:
                await worker.told()
            for task in telling:
                task.cancel()

    async def _send(self, request_id: str, request: TraceRequest, due_s: float) -> None:
        """What a gateway does: ask where to, send it there; where the worker cannot take it, say so and go on."""
        answer: Placed | Refused | None = await self._gateway.place(self._demand(request_id, request))
        sent = WorkerRequest(
            id=request_id,
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            block_hashes=request.block_hashes,
        )
        for _ in range(ATTEMPTS_MAX):
            if not isinstance(answer, Placed):
                break
            worker = self._workers[answer.worker]
            if worker.takes(sent):
                self.late_s = max(self.late_s, self._clock() - due_s)
                self.placements.append(answer.placement_id)
                worker.send(sent, placement_id=answer.placement_id)
                self._progressed()
                return
            event = {"type": "refused", "reason": "the request is longer than the KV pool"}
            answer = await self._gateway.report(answer.placement_id, event)
        self.refusals[answer.code if isinstance(answer, Refused) else "TooManyRefusals"] += 1
        self._progressed()

    def _demand(self, request_id: str, request: TraceRequest) -> dict[str, Any]:
        demand: dict[str, Any] = {
            "request_id": request_id,
            "model": model_name(self.policy),
            "input_tokens": request.input_tokens,
        }
        if request.block_hashes:  # a prompt shorter than a block has none
            demand["block_hashes"] = request.block_hashes
        return demand
