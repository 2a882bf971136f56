"""Callers that break off, and those that speak no HTTP: they get nothing into the log, and the others are answered."""

import asyncio

import aiohttp
import pytest
from structlog.testing import capture_logs

from kvaware_testing.extender_harness import MemoryCluster, serving

TOKEN = b"secret-of-a-gateway-"
POST = b"POST /v1/placements HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        POST + b'Content-Length: 100\r\n\r\n{"request_id"',
        POST + b'Transfer-Encoding: chunked\r\n\r\nff\r\n{"request_id"',
        POST + b"Authorization: Bearer " + TOKEN * 1000 + b"\r\n\r\n",
        POST + b"Content-Length: none\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
    ],
    ids=["half a body", "half a chunk", "a header too long", "no length", "TLS", "no version"],
)
async def test_who_breaks_off_leaves_no_traceback(
    sent: bytes, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """In the middle of a body, or after what cannot be read."""
    async with serving(MemoryCluster()) as caller:
        with capture_logs() as logged:
            reader, writer = await asyncio.open_connection("127.0.0.1", caller.extender.api_port)
            writer.write(sent)
            await writer.drain()
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 10)
            writer.close()
            status, _ = await caller.post("/v1/placements", {"request_id": "r", "model": "nobody", "input_tokens": 1})
    assert status == 404
    assert [entry for entry in logged if entry["log_level"] in {"warning", "error"}] == []
    assert TOKEN.decode() not in str(logged)
    assert caplog.records == []
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("path", ["/v1/placements", "/v1/placements/p0/events", "/v1/pods:explain"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_body_that_is_not_compressed_as_said_is_no_error_of_ours(path: str, encoding: str) -> None:
    """The server finds out a second time when it reads what is left of the body."""
    headers = {"Authorization": f"Bearer {TOKEN.decode()}", "Content-Encoding": encoding}
    async with serving(MemoryCluster()) as caller, aiohttp.ClientSession() as session:
        with capture_logs() as logged:
            url = f"http://127.0.0.1:{caller.extender.api_port}{path}"
            async with session.post(url, data=b"no such thing", headers=headers) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (400, "InvalidRequest")
            async with session.get(f"http://127.0.0.1:{caller.extender.api_port}/livez") as answer:
                assert answer.status == 200  # by then what was left is read
    assert [entry for entry in logged if entry["log_level"] in {"warning", "error"}] == []
