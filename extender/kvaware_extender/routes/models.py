"""``/v1/models``: what a model's traffic is now, and whether more of its replicas would fit."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from kvaware_cluster import Kind
from kvaware_engine import (
    MOST_REPLICAS,
    Engine,
    ModelHeadroom,
    ModelLoad,
    ModelObservation,
    ObjectKey,
    RoleHeadroom,
    Workers,
)
from kvaware_extender.errors import ApiError
from kvaware_extender.freshness import Freshness
from kvaware_extender.routes.table import Route
from kvaware_extender.routes.v1 import STALE, answer
from kvaware_extender.view import View

__all__ = ["find_model", "model_routes"]

MODELS_AT_A_TIME: Final = 16
"""Of which the loads are added up together: with some 5 workers each, 3 ms."""
MOST_WAITING: Final = 64
"""Questions about headroom that wait for their turn, each up to some 3 s of work; the operator asks 8 at a time."""
REPLICAS: Final[dict[str, Any]] = {"type": "integer", "minimum": 1, "maximum": MOST_REPLICAS, "default": 1}


def model_routes(
    *, engine: Engine, workers: Workers, view: View, freshness: Freshness, clock: Callable[[], float]
) -> tuple[Route, ...]:
    """The routes under ``/v1/models``."""
    # One question at a time: between two of its steps kube-scheduler's calls come, not another question's step.
    one_at_a_time = asyncio.Lock()
    asked = 0

    async def listing(_request: web.Request) -> web.Response:
        freshness.require()
        items: list[ModelLoad] = []
        for number, (key, model) in enumerate(sorted(view.objects(Kind.INFERENCE_MODEL).items())):
            if number % MODELS_AT_A_TIME == 0:
                await asyncio.sleep(0)  # calls of kube-scheduler come between
            items.append(workers.load(key, [role.name for role in model.roles], now_s=clock()))
        return await answer({"items": items})

    async def load(request: web.Request) -> web.Response:
        freshness.require()
        model = find_model(view, ObjectKey(request.match_info["namespace"], request.match_info["name"]))
        return await answer(workers.load(model.key, [role.name for role in model.roles], now_s=clock()))

    async def headroom(request: web.Request) -> web.Response:
        replicas = asked_replicas(request)
        freshness.require()
        find_model(view, key := ObjectKey(request.match_info["namespace"], request.match_info["name"]))
        nonlocal asked
        if asked >= MOST_WAITING:
            message = f"{MOST_WAITING} questions about headroom wait already: ask again later"
            raise ApiError(status=503, code="TooManyQuestions", message=message, retryable=True)
        asked += 1
        try:
            async with one_at_a_time:
                if request.transport is None:
                    raise ConnectionResetError("nobody waits for the answer any more")
                freshness.require()  # it may have grown old in the queue, and the model be another one
                model = find_model(view, key)
                roles = [await role_headroom(key, role.name, replicas) for role in model.roles]
        finally:
            asked -= 1
        return await answer(ModelHeadroom(model=key, roles=tuple(roles)))

    async def role_headroom(model: ObjectKey, role: str, replicas: int) -> RoleHeadroom:
        steps = engine.headroom_steps(model, role, replicas=replicas, now_s=clock())
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: RoleHeadroom = end.value
                return found
            await asyncio.sleep(0)

    def route(path: str, handler: Any, summary: str, meaning: str, **more: Any) -> Route:
        answers = {200: meaning, 404: "There is no such InferenceModel (code ModelNotFound).", **STALE}
        return Route(
            method="GET",
            path=f"/v1/models/{{namespace}}/{{name}}/{path}",
            handler=handler,
            summary=summary,
            listener="api",
            answers={**answers, **more.pop("answers", {})},
            **more,
        )

    return (
        Route(
            method="GET",
            path="/v1/models",
            handler=listing,
            summary="Every InferenceModel with its load.",
            listener="api",
            answers={200: "A list of ModelLoads; null is unknown.", **STALE},
        ),
        route("load", load, "What the model's workers have to do now, by role.", "A ModelLoad; null is unknown."),
        route(
            "headroom",
            headroom,
            "Whether so many more replicas of each role would fit now, each role asked about alone, and where. Taints, "
            "affinity and CPU are kube-scheduler's and are not looked at.",
            "A ModelHeadroom.",
            answers={400: f"replicas is no whole number from 1 to {MOST_REPLICAS}."},
            query={"replicas": REPLICAS},
        ),
    )


def find_model(view: View, key: ObjectKey) -> ModelObservation:
    """The InferenceModel of this name. Raises: ApiError 404."""
    model: ModelObservation | None = view.objects(Kind.INFERENCE_MODEL).get(key)
    if model is None:
        message = f"there is no InferenceModel {key.name} in namespace {key.namespace}"
        raise ApiError(status=404, code="ModelNotFound", message=message)
    return model


def asked_replicas(request: web.Request) -> int:
    """The number in the query. Raises: ApiError 400."""
    text = request.query.get("replicas", "1")
    if text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MOST_REPLICAS:
        return int(text)
    message = f"replicas: expected a whole number from 1 to {MOST_REPLICAS}, got {text[:32]!r}"
    raise ApiError(status=400, code="InvalidRequest", message=message)
