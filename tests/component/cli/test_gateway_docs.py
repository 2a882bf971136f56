"""The snippets of docs/requests.md, run as they stand: the real extender, and model servers on the loopback."""

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import yaml

from kvaware_crds.v1alpha1.inference_model import PolicyName
from kvaware_engine.requests.words import CODE_OF_REFUSAL
from kvaware_testing.chat_server import WORDS, ChatServer
from kvaware_testing.extender_harness import Caller, MemoryCluster, serving
from kvaware_testing.repository import REPOSITORY

PAGE = (REPOSITORY / "docs" / "requests.md").read_text("utf-8")
RUN = "<!-- run by tests/component/cli/test_gateway_docs.py -->\n"
CHAT: dict[str, Any] = {"model": "llama-8b", "messages": [{"role": "user", "content": "Tell me more. " * 2000}]}
"""28,000 characters, some 7,000 tokens: worth going back to."""
NODE = """
apiVersion: v1
kind: Node
metadata:
  name: gpu
  labels: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3, nvidia.com/gpu.count: "8", nvidia.com/gpu.memory: "81559"}
status: {allocatable: {nvidia.com/gpu: "8"}, capacity: {nvidia.com/gpu: "8"}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: chat, labels: {kvaware.io/model: llama-8b}}
spec:
  nodeName: gpu
  containers: [{name: server, image: vllm, resources: {limits: {nvidia.com/gpu: 1}}}]
status: {phase: Running, podIP: ADDRESS, conditions: [{type: Ready, status: "True"}]}
"""


def snippet(language: str) -> str:
    """The snippet of that language."""
    [found] = re.findall(rf"{RUN}```{language}\n(.*?)```\n", PAGE, re.DOTALL)
    return str(found)


@dataclass
class Site:
    """An extender, and the model servers of two workers."""

    caller: Caller
    servers: tuple[ChatServer, ChatServer]

    @property
    def reservations(self) -> int:
        """Requests that kvaware believes to be in flight."""
        return len(tuple(self.caller.extender.requests.placer.ledger))


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    """The model of the page with two workers, 127.0.0.1 and 127.0.0.2."""
    [model] = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```\n", PAGE, re.DOTALL)]
    servers = ChatServer(), ChatServer()
    async with servers[0].serve() as port, servers[1].serve(host="127.0.0.2", port=port):
        model["spec"]["workers"] = {"ports": {"http": port}}
        pods = [POD.replace("NAME", f"llama-8b-{n}").replace("ADDRESS", f"127.0.0.{n + 1}") for n in range(2)]
        cluster = MemoryCluster(model, *(yaml.safe_load(text) for text in (NODE, *pods)))
        async with serving(cluster) as caller:
            yield Site(caller=caller, servers=servers)


def gateway() -> SimpleNamespace:
    """What the Python snippet defines."""
    names: dict[str, Any] = {"__name__": "gateway"}
    exec(compile(snippet("python"), "docs/requests.md", "exec"), names)  # noqa: S102 - our own page
    return SimpleNamespace(**names)


async def chat(site: Site, snippet: SimpleNamespace | None = None) -> list[bytes]:
    """One chat through the Python snippet. Returns: the lines that the client gets."""
    async with aiohttp.ClientSession() as session:
        lines = (snippet or gateway()).stream_chat(session, site.caller.api, CHAT)
        return [line async for line in lines]


def text_of(lines: list[bytes]) -> str:
    """The answer in streamed lines."""
    chunks = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    return "".join(choice["delta"]["content"] for chunk in chunks for choice in chunk["choices"])


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_commands_place_send_and_tell(tmp_path: Path) -> None:
    """Pasted into a shell they do what the page says, up to the explanation."""
    async with site() as found:
        environ = {**os.environ, "EXTENDER": found.caller.api}
        shell = await asyncio.create_subprocess_exec(
            "bash", "-euo", "pipefail", "-c", snippet("sh"),
            cwd=tmp_path, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await shell.communicate()
    assert shell.returncode == 0, err.decode()
    placement = json.loads((tmp_path / "placement.json").read_text())
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["choices"][0]["message"]["content"] == "".join(WORDS)
    event, explanation = [json.loads(each) for each in re.findall(r"\{.*?\}(?=\{|$)", out.decode().strip(), re.DOTALL)]
    assert event["result"] == "taken"
    assert explanation["placement_id"] == placement["placement_id"]
    assert explanation["chosen"] == placement["worker"]["id"]


async def test_the_python_snippet_streams_and_reports() -> None:
    """The second of two equal chats goes where the first went, since its text is expected to be cached there."""
    async with site() as found:
        assert text_of(await chat(found)) == "".join(WORDS)
        assert text_of(await chat(found)) == "".join(WORDS)
        assert sorted(len(server.bodies) for server in found.servers) == [0, 2]
        assert found.reservations == 0


async def test_the_python_snippet_goes_on_where_a_worker_refuses() -> None:
    async with site() as found:
        found.servers[0].refuses = found.servers[1].refuses = True
        module = gateway()
        with pytest.raises(module.Refused) as caught:
            await chat(found, module)
        assert caught.value.status == 503
        assert caught.value.error["message"]
        assert [len(server.bodies) for server in found.servers] == [1, 1]
        assert found.reservations == 0


def test_what_the_page_links_to_exists() -> None:
    links = [target for target in re.findall(r"\]\(([^)#]+)\)", PAGE) if "://" not in target]
    assert links
    assert not [target for target in links if not (REPOSITORY / "docs" / target).exists()]


def test_every_refusal_of_the_engine_is_in_the_page() -> None:
    """With its status: a reader searches for the code that a client was told."""
    rows = re.findall(r"^\| ([\d, ]+) \| (.*?) \|", PAGE, re.MULTILINE)
    told = {code: status for status, codes in rows for code in re.findall(r"`(\w+)`", codes)}
    assert {reason.value: str(status) for reason, status in CODE_OF_REFUSAL.items()}.items() <= told.items()


def test_every_policy_is_in_the_page() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.split("## Policies")[1], re.MULTILINE)) == set(PolicyName)
