"""Reads the ``/metrics`` of programs that are not ours: exporters and model servers."""

import asyncio

import aiohttp

from kvaware_cluster.errors import WorkerError
from kvaware_cluster.kubernetes_http import read_up_to

__all__ = ["MetricsReader"]


class MetricsReader:
    """Plain HTTP to the address of a pod: no credentials, no proxy, no redirect, no cookie. One per event loop."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def read(self, address: str, *, what: str, timeout_s: float, body_bytes: int) -> str:
        """The text that ``http://<address>/metrics`` answers.

        Args:
            address: ``ip:port``, IPv6 in brackets.
            what: Names the program in errors.
            timeout_s: For the whole of it: a body that drips does not hold it up.
            body_bytes: A longer body is an error.
        Raises: WorkerError.
        """
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._opened().get(f"http://{address}/metrics", allow_redirects=False) as response,
            ):
                if response.status != 200:
                    raise WorkerError(f"{what}: expected 200, got {response.status}")
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise WorkerError(f"{what}: expected a plain body, got a packed one")
                body = await read_up_to(response.content, body_bytes + 1)
                if len(body) > body_bytes:
                    raise WorkerError(f"{what}: expected at most {body_bytes} bytes, got more")
        except TimeoutError as error:
            raise WorkerError(f"{what}: no whole answer in {timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise WorkerError(f"{what}: no answer: {type(error).__name__}") from error
        return body.decode(errors="replace")

    async def close(self) -> None:
        """Let connections go."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> aiohttp.ClientSession:
        """Made at first use: it belongs to the running loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                # what is packed may unpack to a thousand times its size
                auto_decompress=False,
                headers={"Accept": "text/plain", "Accept-Encoding": "identity", "User-Agent": "kvaware"},
                # a new connection each time: uvicorn, under vLLM and SGLang, closes idle ones after 5 s, just when the
                # next scrape would use them. How many are open at a time is bounded by those who ask
                connector=aiohttp.TCPConnector(force_close=True, limit=0),
                timeout=aiohttp.ClientTimeout(total=None),  # the limit is ours
            )
        return self._session
