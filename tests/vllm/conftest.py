"""Two real engines, the real extender, and a gateway between: started once, which takes half a minute or more."""

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from kvaware_testing.controlplane.eventually import eventually
from kvaware_testing.controlplane.extender import ExtenderProcess
from kvaware_testing.controlplane.process import free_ports
from kvaware_testing.real_vllm import Engine, EnginePorts, Gateway, ShownCluster
from kvaware_testing.repository import REPOSITORY

ENVIRONMENT = REPOSITORY / "build" / "vllm" / "venv"
QUIET_S = 0.5
"""An idle engine publishes nothing, and what it published arrives within milliseconds."""
SETTLE_S = 30.0
FOLLOWED_S = 120.0
"""Whoever was away for long is scraped every 30 s only."""


@dataclass
class Site:
    """What a test has."""

    engines: tuple[Engine, Engine]
    cluster: ShownCluster
    extender: ExtenderProcess
    gateway: Gateway
    _prompts: Iterator[int] = field(default_factory=count)

    def prompt(self, tokens: int) -> list[int]:
        """One of so many tokens that nobody has sent before, as vLLM's tokenizer makes it of words."""
        rng = random.Random(next(self._prompts))  # noqa: S311  # prompts, not secrets
        words = [f"{rng.choice('abcdefgh')}{rng.randrange(100)}" for _ in range(tokens)]
        found = self.engines[0].tokens(" ".join(words))
        assert len(found) == tokens
        return found

    def engine(self, worker: str) -> Engine:
        """Whose id this is."""
        (found,) = [each for each in self.engines if each.worker == worker]
        return found

    def settle(self) -> None:
        """Wait until all that idle engines published is applied."""
        applied, since_s = -1.0, time.monotonic()
        end_s = since_s + SETTLE_S
        while time.monotonic() - since_s < QUIET_S:
            assert time.monotonic() < end_s, "KV events: expected no more of idle engines, got some all the time"
            time.sleep(0.05)
            now = self.extender.metric("kvaware_kv_events_total")
            if now != applied:
                applied, since_s = now, time.monotonic()

    def wait_until_followed(self) -> None:
        """Wait until both engines report, and their events are followed."""

        def followed() -> bool:
            reporting = [each for each in self.extender.get("/v1/workers")["items"] if each["reporting"]]
            return len(reporting) == self.extender.metric("kvaware_kv_event_streams", state="connected") == 2

        eventually(followed, FOLLOWED_S, "both engines report and are followed")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if not (ENVIRONMENT / "bin" / "python").exists():
        pytest.skip(f"no vLLM in {ENVIRONMENT.parent}: make vllm puts it there")
    folder = tmp_path_factory.mktemp("vllm")
    ports = EnginePorts(*free_ports(3))
    cores = sorted(os.sched_getaffinity(0))
    first, second = (
        Engine(number, ports=ports, cpu=cores[number % len(cores)], environment=ENVIRONMENT, folder=folder)
        for number in range(2)
    )
    try:
        first.start()
        second.start()
        first.wait_ready()
        second.wait_ready()
        config = {"decisionLog": "off", "workerScrape": {"intervalS": 1.0}}
        with (
            ShownCluster((first, second), ports) as cluster,
            ExtenderProcess(folder, cluster.kubeconfig(folder), config=config) as extender,
        ):
            made = Site((first, second), cluster, extender, Gateway(extender))
            made.wait_until_followed()
            yield made
    finally:
        first.stop()
        second.stop()
