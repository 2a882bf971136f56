"""The polls of loads and tenants: each model once a round, one broken one spoils nothing, a dead extender is spared."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

from kvaware_cluster import NotFoundError
from kvaware_crds.errors import UpstreamError
from kvaware_engine import ModelLoad
from kvaware_engine.observations import ObjectKey
from kvaware_operator.loads import AT_A_TIME, GIVE_UP_AFTER, Loads
from kvaware_testing.operator_harness import role_load
from kvaware_testing.store_harness import FakeClock, eventually

MODELS = {ObjectKey("ml", f"m-{number:02}"): None for number in range(20)}


class Source:
    """Loads of all models, with faults."""

    def __init__(self) -> None:
        self.errors: dict[ObjectKey, Exception] = {}
        self.down = False
        self.asked: Counter[ObjectKey] = Counter()
        self.waiting = 0
        self.most_waiting = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def load(self, key: ObjectKey) -> ModelLoad:
        """See ``ExtenderClient``."""
        self.asked[key] += 1
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            await self.answers.wait()
        finally:
            self.waiting -= 1
        if self.down:
            raise UpstreamError("no answer")
        if key in self.errors:
            raise self.errors[key]
        return ModelLoad(model=key, roles=(role_load(),))


@asynccontextmanager
async def polling(source: Source, *, models=MODELS):
    """One round after another, without a pause: the clock is always far ahead."""
    told: list[ObjectKey] = []
    clock = FakeClock()
    loads = Loads(
        source, poll_s=0.01, grace_s=30.0, scaled=lambda: models, changed=told.append, clock=clock, asked=lambda _: None
    )
    task = asyncio.create_task(loads.run())
    try:
        yield loads, told, clock
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_every_model_is_asked_about_in_turn_and_told():
    source = Source()
    async with polling(source) as (loads, told, _):
        await eventually(lambda: min(source.asked[key] for key in MODELS) >= 2)
        assert set(told) == set(MODELS)
        assert all(loads.of(key) is not None for key in MODELS)
        counts = source.asked.values()
        assert max(counts) - min(counts) <= 1


async def test_a_model_that_the_extender_does_not_know_is_unknown_alone():
    """One that was created a moment ago: the others are asked about all the same."""
    source = Source()
    gone = list(MODELS)[: GIVE_UP_AFTER + 2]
    source.errors = {key: NotFoundError("no such model", status=404, reason="ModelNotFound") for key in gone}
    async with polling(source) as (loads, told, _):
        await eventually(lambda: all(loads.of(key) is not None for key in set(MODELS) - set(gone)))
        assert all(loads.of(key) is None for key in gone)
        assert set(gone) <= set(told)


async def test_a_model_that_the_extender_does_not_know_is_told_once_and_only_when_that_lasts(logs):
    """Its answers alternate with those of other models; one that came or went a moment ago is no trouble."""
    source = Source()
    [lost, passing, *_] = MODELS
    source.errors = {lost: NotFoundError("no such model", status=404, reason="ModelNotFound")}
    models = dict(MODELS)
    async with polling(source, models=models) as (loads, _, _):
        await eventually(lambda: source.asked[lost] >= 4)
        assert [(each["event"], each["what"]) for each in logs] == [("failing", "asking for the load of ml/m-00")]
        source.errors[passing] = source.errors.pop(lost)
        await eventually(lambda: loads.of(lost) is not None and loads.of(passing) is None)
        del models[passing]
        loads.forget(passing)
        asked = source.asked[lost]
        await eventually(lambda: source.asked[lost] >= asked + 3)
        models[passing] = None
        source.errors.clear()
        await eventually(lambda: loads.of(passing) is not None)
        events = [(each["event"], each["what"]) for each in logs if not each["what"].endswith("m-01")]
        assert events == [
            ("failing", "asking for the load of ml/m-00"),
            ("works again", "asking for the load of ml/m-00"),
        ]
        assert "works again" not in [each["event"] for each in logs if each["what"].endswith("m-01")]


async def test_an_extender_that_is_down_is_asked_a_few_times_per_round(logs):
    """And everybody is told that the load is unknown, so that nothing is scaled by an old one."""
    source = Source()
    async with polling(source) as (loads, told, _):
        await eventually(lambda: all(loads.of(key) is not None for key in MODELS))
        source.down = True
        await eventually(lambda: all(loads.of(key) is None for key in MODELS))
        source.asked.clear()
        told.clear()
        await eventually(lambda: len(told) >= 3 * len(MODELS))
        assert source.asked.total() <= (GIVE_UP_AFTER + AT_A_TIME) * (len(told) / len(MODELS) + 1)
        assert [each["event"] for each in logs] == ["failing"], "said once"
        source.down = False
        await eventually(lambda: all(loads.of(key) is not None for key in MODELS))
        assert [each["event"] for each in logs] == ["failing", "works again"]


async def test_a_slow_extender_gets_a_few_questions_at_a_time():
    source = Source()
    source.answers.clear()
    async with polling(source):
        await eventually(lambda: source.waiting == AT_A_TIME)
        source.answers.set()
        await eventually(lambda: all(source.asked[key] for key in MODELS))
        assert source.most_waiting == AT_A_TIME


async def test_unknown_is_borne_for_a_while():
    source = Source()
    async with polling(source) as (loads, _, clock):
        [key, *_] = MODELS
        assert not loads.missing(key, unknown=True)
        clock.now_s += 30.0
        assert not loads.missing(key, unknown=True)
        clock.now_s += 0.1
        assert loads.missing(key, unknown=True)
        assert not loads.missing(key, unknown=False)
        clock.now_s += 1.0
        assert not loads.missing(key, unknown=True), "counted from when it was known last"


async def test_a_model_that_is_forgotten_during_its_question_stays_forgotten():
    source = Source()
    models = dict.fromkeys(list(MODELS)[:1])
    [key] = models
    source.answers.clear()
    async with polling(source, models=models) as (loads, told, _):
        await eventually(lambda: source.waiting == 1)
        models.clear()
        loads.forget(key)
        source.answers.set()
        await eventually(lambda: source.waiting == 0)
        assert loads.of(key) is None
        assert told == []
