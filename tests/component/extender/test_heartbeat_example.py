"""What ``examples/heartbeat`` shows is what is taken."""

import re

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
