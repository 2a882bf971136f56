"""``kvaware operator``: the real process, started, asked and stopped as a kubelet does."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml

from kvaware_cli.operator_command import with_options
from kvaware_operator import LeaseSettings, OperatorSettings
from kvaware_testing.command_line import Kvaware
from kvaware_testing.fake_api import FakeApi
from kvaware_testing.operator_harness import raw_scaled_model
from kvaware_testing.store_harness import eventually


def kubeconfig(folder: Path, url: str) -> Path:
    """Credentials for the fake API server, which asks for none."""
    path = folder / "kubeconfig"
    named = {"name": "fake"}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{**named, "cluster": {"server": url}}],
        "users": [{**named, "user": {"token": "t"}}],
        "contexts": [{**named, "context": {"cluster": "fake", "user": "fake"}}],
    }
    path.write_text(yaml.safe_dump(content), "utf-8")
    return path


@asynccontextmanager
async def process(folder: Path, api: FakeApi, *options: str):
    """The process and the port on which it answers."""
    arguments = ["operator", "--kubeconfig", str(kubeconfig(folder, api.url)), "--port", "0", *options]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvaware_cli", *arguments, stderr=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    assert child.stderr is not None
    try:
        async with asyncio.timeout(30):
            while b'"event": "listening"' not in (line := await child.stderr.readline()):
                assert line, "it ended before it listened"
        yield child, yaml.safe_load(line)["port"]
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def test_it_takes_the_lease_works_and_ends_in_order(tmp_path: Path) -> None:
    """SIGTERM: exit code 0 within seconds, the lease given back so that the next one need not wait it out."""
    async with FakeApi.serve() as api:
        await api.put("inferencemodel", raw_scaled_model(mode=None))
        options = ("--extender-url", "http://127.0.0.1:9")
        async with process(tmp_path, api, *options) as (child, port), aiohttp.ClientSession() as session:
            model = ("ml", "llama")
            await eventually(lambda: "status" in api.objects["inferencemodel"][model])
            async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                assert answer.status == 200
            lease = ("default", "kvaware-operator")
            assert api.objects["lease"][lease]["spec"]["holderIdentity"]
            child.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                assert await child.wait() == 0
            assert api.objects["lease"][lease]["spec"]["holderIdentity"] == ""


async def test_without_a_lease_none_is_asked_for(tmp_path: Path) -> None:
    async with FakeApi.serve() as api:
        await api.put("inferencemodel", raw_scaled_model(mode=None))
        async with process(tmp_path, api, "--no-lease"):
            await eventually(lambda: "status" in api.objects["inferencemodel"]["ml", "llama"])
            assert not [path for _, path, _, _ in api.requests if "/leases" in path]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(("--kubeconfig", "nowhere"), "--kubeconfig: expected a file, got 'nowhere'", id="no kubeconfig"),
        pytest.param(("--config", "nowhere"), "nowhere", id="no settings file"),
        pytest.param(("--port", "70000"), "65535", id="no port"),
    ],
)
def test_wrong_use_says_what_was_expected(
    kvaware: Kvaware, tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    more = () if "--kubeconfig" in arguments else ("--kubeconfig", str(kubeconfig(tmp_path, "http://127.0.0.1:9")))
    result = kvaware("operator", *arguments, *more)
    assert result.code == 2
    assert expected in result.err
    assert "Traceback" not in result.err


def test_an_extender_url_that_is_none_is_said(kvaware: Kvaware, tmp_path: Path) -> None:
    given = ("--kubeconfig", str(kubeconfig(tmp_path, "http://127.0.0.1:9")), "--extender-url", "kvaware:8900")
    result = kvaware("operator", *given)
    assert result.code == 2
    assert "expected the extender's URL" in result.err


def test_options_go_before_settings() -> None:
    settings = OperatorSettings(host="10.0.0.1", port=1, lease=LeaseSettings(namespace="x"))
    changed = with_options(settings, extender_url="http://e:1", host=None, port=7, lease=False)
    assert (changed.extender_url, changed.host, changed.port) == ("http://e:1", "10.0.0.1", 7)
    assert changed.lease == LeaseSettings(namespace="x", enabled=False)
    assert with_options(settings, extender_url=None, host=None, port=None, lease=None) == settings
