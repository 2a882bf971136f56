"""What ``/openapi.json`` says of placements is what the service does: schemathesis calls it as described, and worse."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
import schemathesis
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import CheckContext
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from kvaware_engine import Workers
from kvaware_engine.requests.placer import Placer
from kvaware_extender.gateway_auth import GatewayAuth
from kvaware_testing.builders import model, quota
from kvaware_testing.placement_harness import CountedPlacer, FakeView, demand, placement_app
from kvaware_testing.store_harness import FakeClock
from kvaware_testing.worker_builders import heartbeat, place

WORKER = "ml:w0:0"
UNAVAILABLE = {"NoWorker", "TooManyRefusals", "StaleView", "TooManyStreams"}
"""Codes of the promised 503."""


def placer() -> Placer:
    """One worker whose pool holds 16,000 tokens."""
    workers = Workers()
    made = Placer(workers, seed="test")
    made.observe_model(model("llama").key, model("llama", served_names=("llama",)))
    made.observe_quota("q", quota("q", tenant="default", concurrent_requests=50))
    workers.expect(WORKER, place(WORKER))
    figures = {"waiting": 0, "running": 0, "kv_blocks_total": 1000, "kv_blocks_free": 1000}
    workers.observe(heartbeat(WORKER, seq=1, at_s=FakeClock()(), **figures), now_s=FakeClock()())
    return made


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The service in a thread of its own: schemathesis waits for its answers."""
    ready, told = threading.Event(), []
    deciding = placer()

    async def serve() -> None:
        clock = FakeClock()
        app, _ = placement_app(
            CountedPlacer(deciding),
            view=FakeView(),
            auth=GatewayAuth(None, default_tenant="default"),
            clock=clock,
            control=lambda tenant: deciding.limits.control(tenant, clock()),
            most_bytes=2**20,
            streams_max=8,
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        stop = asyncio.Event()
        told.extend((f"http://127.0.0.1:{runner.addresses[0][1]}", asyncio.get_running_loop(), stop))
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="service")
    thread.start()
    assert ready.wait(60)
    url, loop, stop = told
    yield url
    loop.call_soon_threadsafe(stop.set)
    thread.join()


def only_promised_errors(
    _context: CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> bool | None:
    """Never a 5xx but the 503 that is described."""
    if response.status_code >= 500:
        assert response.status_code == 503, f"{case.method} {case.path}: {response.status_code} {response.text}"
        assert response.json()["error"]["code"] in UNAVAILABLE
    return None


@pytest.fixture(scope="module")
def schema(served: str) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{served}/openapi.json")


@pytest.fixture(scope="module")
def placement_id(schema: schemathesis.BaseSchema) -> str:
    """One that there is."""
    answer = schema["/v1/placements"]["POST"].Case(body=demand("known", input_tokens=1)).call(timeout=10)
    placed: str = answer.json()["placement_id"]
    return placed


CHECKS = [only_promised_errors, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/placements"),
        ("POST", "/v1/placements:batch"),
        ("POST", "/v1/placements/{id}/events"),
        ("GET", "/v1/placements/{id}/explanation"),
        ("GET", "/v1/placements/stream"),
        ("GET", "/v1/block-groups"),
    ],
)
def test_the_service_does_what_it_says(schema, placement_id, method, path, mode):
    """Bodies as described and others, about a model and a placement that there are."""
    operation = schema[path][method]

    @settings(max_examples=10, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def call(case: schemathesis.Case) -> None:
        demands = case.body.get("demands", [case.body]) if isinstance(case.body, dict) else []
        for sent in demands if isinstance(demands, list) else []:
            if isinstance(sent, dict) and "model" in sent:
                sent["model"] = "llama"
        if "id" in case.path_parameters:
            case.path_parameters["id"] = placement_id
        case.call_and_validate(checks=CHECKS, timeout=10)

    call()


def test_every_route_of_placements_is_described(schema):
    assert set(schema.raw_schema["paths"]) == {
        "/v1/placements",
        "/v1/placements:batch",
        "/v1/placements/{id}/events",
        "/v1/placements/{id}/explanation",
        "/v1/placements/stream",
        "/v1/block-groups",
    }
    stream = schema.raw_schema["paths"]["/v1/placements/stream"]["get"]
    parts = schema.raw_schema["components"]["schemas"]
    for frame in stream["x-frames"].values():
        assert frame["$ref"].rpartition("/")[2] in parts
