"""The last load of every scaled model, asked for in turn over each poll interval."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from kvaware_cluster import NotFoundError
from kvaware_crds.errors import KvawareError
from kvaware_engine import ModelLoad
from kvaware_engine.observations import ObjectKey
from kvaware_operator.troubles import Troubles

__all__ = ["Loads", "PollResult"]

GIVE_UP_AFTER: Final = 5
"""Questions in a row without an answer: the rest of the round is not asked, the extender is down for all."""

AT_A_TIME: Final = 8
"""Questions that wait for their answers: a slow extender does not stretch the round."""
NOBODY_YET_S: Final = 0.5
"""While there is nobody to ask about, as before the view is complete: until that is looked for again."""

PollResult = str
"""``answered`` or ``failed``."""


class LoadSource(Protocol):
    """Where loads come from: ``ExtenderClient``."""

    async def load(self, key: ObjectKey) -> ModelLoad:
        """A model's traffic now."""
        ...


class Loads:
    """Kept in memory only: after a restart every load is unknown until it was asked for."""

    def __init__(
        self,
        source: LoadSource,
        *,
        poll_s: float,
        grace_s: float,
        scaled: Callable[[], Mapping[ObjectKey, object]],
        changed: Callable[[ObjectKey], None],
        clock: Callable[[], float],
        asked: Callable[[PollResult], None] = lambda _result: None,
    ) -> None:
        """Ask nothing yet.

        Args:
            source: Asked for one model at a time.
            poll_s: Between two questions about one model.
            grace_s: So long without an answer is borne.
            scaled: The models that are asked about, as keys.
            changed: Told of each model that was asked about, answered or not.
            clock: Monotonic seconds.
            asked: Told how each question ended.
        """
        self._source = source
        self._poll_s, self._grace_s = poll_s, grace_s
        self._scaled = scaled
        self._changed = changed
        self._clock = clock
        self._asked = asked
        self._loads: dict[ObjectKey, ModelLoad | None] = {}
        self._known_at_s: dict[ObjectKey, float] = {}
        """When a model's load was known last, or first seen to be unknown."""
        self._troubles = Troubles()
        self._not_found: set[ObjectKey] = set()
        """Models that the extender did not know when it was asked last."""
        self._failed = 0
        """Questions in a row that were not answered."""

    def of(self, model: ObjectKey) -> ModelLoad | None:
        """As answered last; None: unknown."""
        return self._loads.get(model)

    def awaited(self, model: ObjectKey) -> bool:
        """Whether the model is to be asked about and was not yet; ``changed`` will tell of it."""
        return model in self._scaled() and model not in self._loads

    def missing(self, model: ObjectKey, *, unknown: bool) -> bool:
        """Whether the load has been unknown for longer than is borne; ``unknown`` says whether it is now."""
        now_s = self._clock()
        if not unknown:
            self._known_at_s[model] = now_s
            return False
        return now_s - self._known_at_s.setdefault(model, now_s) > self._grace_s

    def forget(self, model: ObjectKey) -> None:
        """The model is gone, or not scaled any more."""
        self._loads.pop(model, None)
        self._known_at_s.pop(model, None)
        self._not_found.discard(model)
        self._troubles.forget(_load_of(model))

    async def run(self) -> None:
        """Ask for ever. The first round is asked at once: nothing is known before it."""
        spread = False
        while True:
            began_s = self._clock()
            models = sorted(self._scaled())
            self._failed = 0
            slots = asyncio.Semaphore(AT_A_TIME)
            async with asyncio.TaskGroup() as questions:
                for place, model in enumerate(models):
                    if spread:
                        await self._until(began_s + self._poll_s * place / len(models))
                    await slots.acquire()
                    if self._failed < GIVE_UP_AFTER:
                        questions.create_task(self._ask(model, slots), name="ask-load")
                    else:
                        slots.release()
                        self._take(model, None)
            spread = spread or bool(models)
            await self._until(began_s + (self._poll_s if models else min(NOBODY_YET_S, self._poll_s)))

    async def _until(self, due_s: float) -> None:
        await asyncio.sleep(max(0.0, due_s - self._clock()))

    async def _ask(self, model: ObjectKey, slots: asyncio.Semaphore) -> None:
        """One question."""
        try:
            load = await self._source.load(model)
        except NotFoundError as error:  # about this model alone
            self._unknown(model, error)
            self._asked("failed")
            self._take(model, None)
        except KvawareError as error:
            self._failed += 1
            self._troubles.failed("asking for loads", error, namespace=model.namespace, model=model.name)
            self._asked("failed")
            self._take(model, None)
        else:
            self._failed = 0
            self._not_found.discard(model)
            self._troubles.worked(_load_of(model))
            self._troubles.worked("asking for loads")
            self._asked("answered")
            self._take(model, load)
        finally:
            slots.release()

    def _unknown(self, model: ObjectKey, error: NotFoundError) -> None:
        """The extender does not know it. Of a model that came or went a moment ago that is no trouble."""
        if model in self._not_found:
            self._troubles.failed(_load_of(model), error)
        elif model in self._scaled():
            self._not_found.add(model)

    def _take(self, model: ObjectKey, load: ModelLoad | None) -> None:
        if model in self._scaled():  # else it was forgotten meanwhile
            self._loads[model] = load
            self._changed(model)


def _load_of(model: ObjectKey) -> str:
    return f"asking for the load of {model.namespace}/{model.name}"
