"""What ``examples/heartbeat`` shows is what is taken."""

import re
import subprocess

import yaml

from kvaware_cluster import DirectorySource, WorkerScrapeSettings
from kvaware_extender import HeartbeatSettings
from kvaware_testing.extender_harness import serving
from kvaware_testing.repository import REPOSITORY

FOLDER = REPOSITORY / "examples" / "heartbeat"
README = (FOLDER / "README.md").read_text("utf-8")
BODY = (FOLDER / "heartbeat.json").read_bytes()


async def test_the_example_is_taken_by_an_extender_of_the_example_cluster(tmp_path):
    """With a token file, as its second half says: a folder of YAML has nobody else who knows tokens."""
    [path] = re.findall(r"http://127\.0\.0\.1:8900(/v1/workers/\S+)", README)
    tokens = tmp_path / "token"
    tokens.write_text("0123456789abcdef0123456789abcdef\n")
    source = await DirectorySource.load(REPOSITORY / "examples" / "cluster")
    async with serving(
        source,
        heartbeat=HeartbeatSettings(token_file=str(tokens)),
        worker_scrape=WorkerScrapeSettings(enabled=False),
    ) as caller:
        assert (await caller.put(path, BODY, token="0123456789abcdef0123456789abcdef"))[0] == 202
        status, reply, headers = await caller.put(path, BODY, token="another-token-of-32-characters..")
        assert (status, "setting heartbeat.tokenFile" in reply["error"]["message"]) == (401, True)
        assert headers["WWW-Authenticate"].startswith("Bearer")
        _, load = await caller.get("/v1/models/chat/llama-70b/load")
        assert (load["roles"][0]["waiting"], load["roles"][0]["kv_usage_ratio"]) == (3, 0.8)


def test_the_pod_of_the_example_has_the_token_that_is_asked_for():
    """By its audience, at the path that the command reads."""
    spec = yaml.safe_load((FOLDER / "pod.yaml").read_text("utf-8"))["spec"]
    [volume], [container] = spec["volumes"], spec["containers"]
    [source] = volume["projected"]["sources"]
    [mount] = container["volumeMounts"]
    assert mount["name"] == volume["name"]
    assert source["serviceAccountToken"]["audience"] in HeartbeatSettings().audiences
    assert f"$(cat {mount['mountPath']}/{source['serviceAccountToken']['path']})" in README


async def test_a_number_from_the_clock_goes_on_over_a_restart(tmp_path):
    """A server that starts again inside its container counts from 0, which is the past for as long as the time-out."""
    [replace] = re.findall(r"^(sed .*) heartbeat\.json \|$", README, re.MULTILINE)
    [path] = re.findall(r"http://127\.0\.0\.1:8900(/v1/workers/\S+)", README)

    def fresh() -> bytes:
        return subprocess.run(["bash", "-c", replace], input=BODY, capture_output=True, check=True).stdout

    first, second = fresh(), fresh()
    assert first != BODY
    token = "0123456789abcdef0123456789abcdef"
    tokens = tmp_path / "token"
    tokens.write_text(token)
    source = await DirectorySource.load(REPOSITORY / "examples" / "cluster")
    heartbeat = HeartbeatSettings(token_file=str(tokens), min_interval_s=0)
    async with serving(source, heartbeat=heartbeat, worker_scrape=WorkerScrapeSettings(enabled=False)) as caller:
        got = [(await caller.put(path, body, token=token))[0] for body in (first, second, BODY)]
        assert got == [202, 202, 409]
