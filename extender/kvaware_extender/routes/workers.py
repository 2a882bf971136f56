"""``/v1/workers``: what the workers say of themselves."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from kvaware_cluster import Heartbeat, Kind, parse_heartbeat, split_worker
from kvaware_crds.errors import StaleViewError, WireError
from kvaware_engine import ObjectKey, ReportVerdict, Workers, WorkerView
from kvaware_extender.errors import ApiError
from kvaware_extender.freshness import Freshness
from kvaware_extender.intervals import Intervals
from kvaware_extender.metrics import HeartbeatResult, Metrics
from kvaware_extender.openapi import REFERENCE
from kvaware_extender.routes.bodies import BODY_WITHIN_S, read_at_most
from kvaware_extender.routes.models import find_model
from kvaware_extender.routes.table import Route
from kvaware_extender.routes.v1 import STALE, answer
from kvaware_extender.view import View
from kvaware_extender.wire import decode
from kvaware_extender.worker_auth import WorkerAuth
from kvaware_extender.worker_feed import WorkerFeed

__all__ = ["list_workers", "worker_routes"]

MOST_BYTES: Final = 16 * 1024
"""Of one heartbeat; one with every field is 0.6 kB."""
MODELS_AT_A_TIME: Final = 4
"""Of which the workers are looked at together: with some 5 workers each, 2 ms; 5,000 workers are 0.4 s."""
UNTOLD: Final = ""
"""A heartbeat does not say of which incarnation it is: that is what the API server shows."""
HEARTBEAT: Final[dict[str, Any]] = Heartbeat.model_json_schema(ref_template=REFERENCE)


def worker_routes(
    *,
    workers: Workers,
    feed: WorkerFeed,
    auth: WorkerAuth,
    intervals: Intervals,
    view: View,
    freshness: Freshness,
    metrics: Metrics,
    clock: Callable[[], float],
) -> tuple[Route, ...]:
    """The routes under ``/v1/workers``."""

    async def heartbeat(request: web.Request) -> web.Response:
        try:
            await take(request)
        except ApiError as e:
            metrics.heartbeats[RESULTS.get(e.status, HeartbeatResult.UNREADABLE)].inc()
            raise
        except WireError:
            metrics.heartbeats[HeartbeatResult.UNREADABLE].inc()
            raise
        except StaleViewError:
            metrics.heartbeats[HeartbeatResult.UNAVAILABLE].inc()
            raise
        metrics.heartbeats[HeartbeatResult.TAKEN].inc()
        return web.Response(status=202)

    async def take(request: web.Request) -> None:
        began_s = clock()
        reporter = await auth.who(request.headers.get("Authorization"))
        worker = request.match_info["id"]
        split = split_worker(worker)
        if split is None:
            raise WireError("worker: expected an id like <namespace>:<pod>:<rank> in the path")
        in_time(worker)  # before what it costs to read it
        body = decode(await read_at_most(request, MOST_BYTES))
        freshness.require()
        pod = view.pod(*split[0])
        if pod is None:
            raise not_found(worker)
        auth.allow(reporter, split[0], pod)
        in_time(worker)  # another one may have been faster, while this one's body came
        intervals.take(worker)  # also for one that is refused below: reading it cost as much
        model = feed.model_of(split[0])
        if model is None:
            raise not_found(worker)
        report = parse_heartbeat(body, worker=worker, incarnation=UNTOLD, observed_at_s=began_s, model=model)
        match feed.beat(report, now_s=clock()):
            case ReportVerdict.OLDER:
                message = f"seq: expected a number above the last one of {worker}, got {report.seq}"
                raise ApiError(status=409, code="Outdated", message=message)
            case ReportVerdict.UNKNOWN_WORKER:
                raise not_found(worker)
            case ReportVerdict.TAKEN:
                return

    def in_time(worker: str) -> None:
        wait_s = intervals.wait_s(worker)
        if wait_s is not None:
            raise ApiError(
                status=429,
                code="TooManyRequests",
                message=f"expected the next heartbeat of {worker} in {wait_s:.3f} s at the soonest (setting "
                "heartbeat.minIntervalS)",
                retryable=True,
                retry_after_s=wait_s,
            )

    async def listing(request: web.Request) -> web.Response:
        named = request.query.get("model")
        key = model_key(named) if named is not None else None
        freshness.require()
        if key is None:
            return await answer({"items": await list_workers(workers, view=view, clock=clock)})
        return await answer({"items": workers.views(find_model(view, key).key, now_s=clock())})

    return (
        Route(
            method="PUT",
            path="/v1/workers/{id}/heartbeat",
            handler=heartbeat,
            summary="A worker says how it is, every few seconds or when it changes; figures that it leaves out stay as "
            "they were told last, until they are too old.",
            listener="api",
            answers={
                202: "Taken.",
                400: "The body is no heartbeat, or of another model than the worker's.",
                401: "No bearer token, or one that nobody knows.",
                403: "The token is not that of the worker's own pod.",
                404: "The API server shows no such worker (code WorkerNotFound).",
                408: f"The body did not come within {BODY_WITHIN_S:g} s.",
                409: "A heartbeat with this number or a higher one was taken before (code Outdated).",
                413: f"The body is longer than {MOST_BYTES} bytes.",
                429: "The worker's last heartbeat is younger than setting heartbeat.minIntervalS (retryable).",
                503: "The view of the cluster is stale (code StaleView), or the token cannot be reviewed now "
                "(TokenReviewUnavailable, TooManyReviews); retryable.",
            },
            request=HEARTBEAT,
            bearer=True,
        ),
        Route(
            method="GET",
            path="/v1/workers",
            handler=listing,
            summary="Every worker, or one model's, as it is believed to be now.",
            listener="api",
            answers={
                200: "A list of workers; null is unknown.",
                400: "model is no namespace/name.",
                404: "There is no such InferenceModel (code ModelNotFound).",
                **STALE,
            },
            query={"model": {"type": "string", "description": "namespace/name of an InferenceModel"}},
        ),
    )


RESULTS: Final = {
    401: HeartbeatResult.UNAUTHORIZED,
    403: HeartbeatResult.FORBIDDEN,
    404: HeartbeatResult.UNKNOWN_WORKER,
    409: HeartbeatResult.OUTDATED,
    429: HeartbeatResult.TOO_SOON,
    503: HeartbeatResult.UNAVAILABLE,
}


async def list_workers(workers: Workers, *, view: View, clock: Callable[[], float]) -> list[WorkerView]:
    """All workers by id, model after model: calls of kube-scheduler come between, so the list is no single moment's."""
    items: list[WorkerView] = []
    for number, key in enumerate(sorted(view.objects(Kind.INFERENCE_MODEL))):
        if number % MODELS_AT_A_TIME == 0:
            await asyncio.sleep(0)
        items += workers.views(key, now_s=clock())
    return sorted(items, key=lambda item: item.worker)


def model_key(text: str) -> ObjectKey:
    """``namespace/name``. Raises: WireError."""
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise WireError(f"model: expected namespace/name, got {text[:64]!r}")
    return ObjectKey(namespace, name)


def not_found(worker: str) -> ApiError:
    """What the API server does not show, or shows as no model's worker."""
    message = f"the API server shows no worker {worker}: expected <namespace>:<pod>:<rank> of a bound pod of a model"
    return ApiError(status=404, code="WorkerNotFound", message=message)
