"""kube-scheduler's verbs. Refusals and stale views are answers with 200; only what is no request at all is a 4xx."""

import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
from aiohttp import web

from kvaware_crds.errors import WireError
from kvaware_extender.binding import Binder
from kvaware_extender.metrics import Metrics, Verb
from kvaware_extender.preemption import Preemptions
from kvaware_extender.replies import json_response
from kvaware_extender.routes.table import Route
from kvaware_extender.verbs import Verbs
from kvaware_extender.wire import (
    parse_bind,
    parse_offer,
    render_bind,
    render_filter_error,
    render_priorities,
    render_victims,
)

__all__ = ["scheduler_routes"]

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.Response]]

FAILED: Final = "kvaware: an unforeseen error; the log has it"
TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")

OFFER: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["Pod"],
    "properties": {
        "Pod": {"type": "object", "description": "A whole v1.Pod with metadata.uid."},
        "NodeNames": {"type": ["array", "null"], "items": {"type": "string"}},
        "Nodes": {"type": ["object", "null"], "description": "A v1.NodeList, read when NodeNames is null."},
    },
}
BIND: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["PodName", "PodNamespace", "PodUID", "Node"],
    "properties": {key: {"type": "string"} for key in ("PodName", "PodNamespace", "PodUID", "Node")},
}
VICTIMS: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["Pod"],
    "properties": {
        "Pod": {"type": "object", "description": "A whole v1.Pod with metadata.uid."},
        "NodeNameToMetaVictims": {
            "type": ["object", "null"],
            "description": "By node: Pods, each with its UID, and NumPDBViolations.",
        },
        "NodeNameToVictims": {
            "type": ["object", "null"],
            "description": "By node: Pods, each whole, and NumPDBViolations; read when NodeNameToMetaVictims is null.",
        },
    },
}
ANSWERS: Final = {400: "The body is not such a request.", 413: "The body is longer than maxBodyBytes."}


def scheduler_routes(
    *, verbs: Verbs, preemptions: Preemptions, binder: Binder, metrics: Metrics, clock: Callable[[], float]
) -> tuple[Route, ...]:
    """The routes of the scheduler listener."""

    def at_once(verb: Verb, answer: Callable[..., bytes], otherwise: Callable[[bytes], bytes]) -> Handler:
        """Serve a verb that waits for nothing; ``otherwise`` is what is said after an unforeseen error."""

        async def serve(request: web.Request) -> web.Response:
            body = await request.read()
            began_s = clock()
            try:
                reply = answer(body, trace_id=trace_id(request))
            except WireError:
                raise
            except Exception:  # noqa: BLE001 - whatever it is, kube-scheduler gets an answer; the log has the traceback
                unforeseen(verb)
                reply = otherwise(body)
            metrics.decided(verb, took_s=clock() - began_s)
            return json_response(reply)

        return serve

    def no_preference(body: bytes) -> bytes:
        # kube-scheduler has no retry here: without our scores it takes its own, and bind checks again.
        names = parse_offer(body).names
        return render_priorities(names, [0] * len(names))

    async def bind(request: web.Request) -> web.Response:
        args = parse_bind(await request.read())
        began_s = clock()
        try:
            error = await binder.bind(args, trace_id=trace_id(request))
        except Exception:  # noqa: BLE001 - whatever it is, kube-scheduler gets an answer; the log has the traceback
            unforeseen(Verb.BIND)
            error = FAILED
        metrics.decided(Verb.BIND, took_s=clock() - began_s)
        return json_response(render_bind(error))

    def unforeseen(verb: Verb) -> None:
        metrics.internal_errors[verb].inc()
        log.error("unforeseen error", verb=str(verb), exc_info=sys.exc_info())

    def route(path: str, handler: Handler, summary: str, request: dict[str, Any], meaning: str) -> Route:
        return Route(
            method="POST",
            path=path,
            handler=handler,
            summary=summary,
            listener="scheduler",
            answers={200: meaning, **ANSWERS},
            request=request,
        )

    return (
        route(
            "/scheduler/filter",
            at_once(Verb.FILTER, verbs.filter, lambda _body: render_filter_error(FAILED)),
            "Which of the offered nodes can take the pod.",
            OFFER,
            "An ExtenderFilterResult: NodeNames or Nodes, FailedAndUnresolvableNodes, Error.",
        ),
        route(
            "/scheduler/prioritize",
            at_once(Verb.PRIORITIZE, verbs.prioritize, no_preference),
            "A score of 0..10 per offered node.",
            OFFER,
            "A HostPriorityList.",
        ),
        route(
            "/scheduler/preempt",
            at_once(Verb.PREEMPT, preemptions.answer, lambda _body: render_victims(())),  # nobody dies for it
            "On which of the offered nodes the victims' deaths would make room for the pod.",
            VICTIMS,
            "An ExtenderPreemptionResult: NodeNameToMetaVictims, empty where nobody is to die.",
        ),
        route("/scheduler/bind", bind, "Reserve, and bind the pod.", BIND, "Error, empty when the pod is bound."),
    )


def trace_id(request: web.Request) -> str | None:
    """The W3C trace that the caller is in, if it says so."""
    header = request.headers.get("traceparent")
    found = TRACEPARENT.fullmatch(header) if header else None
    return found[1] if found else None
