"""The part of the extender that places requests: engine, routes and metrics, wired. Nothing runs before ``open``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from kvaware_cluster import WorkerMembership
from kvaware_cluster.process_metrics import counter, gauge
from kvaware_engine import HardwareProfile, Workers
from kvaware_engine.requests.limits import LimitRefusal, RequestUse
from kvaware_engine.requests.placer import Placer
from kvaware_extender.addresses import Addresses
from kvaware_extender.answering import Answering
from kvaware_extender.decision_log import DecisionLog
from kvaware_extender.express import Handler, express
from kvaware_extender.freshness import Freshness
from kvaware_extender.gateway_auth import GatewayAuth, token_and_tenant
from kvaware_extender.kv_feed import KvFeed
from kvaware_extender.metrics import Metrics
from kvaware_extender.placing import Placing
from kvaware_extender.prompts import Prompts
from kvaware_extender.request_feed import RequestFeed
from kvaware_extender.routes.block_groups import block_group_routes
from kvaware_extender.routes.placements import placement_routes
from kvaware_extender.routes.stream import Streams, stream_routes
from kvaware_extender.routes.table import Route
from kvaware_extender.settings import ExtenderSettings
from kvaware_extender.token_file import TokenFile
from kvaware_extender.view import View

__all__ = ["RequestsPart"]

SEED_BYTES: Final = 4
"""Ids of placements begin with so much chance: those of before a restart are not taken for ours."""
SECRET_BYTES: Final = 32
"""Of what they end in."""
LIMIT: Final = ["tenant", "quota", "limit"]


class RequestsPart:
    """All that places requests."""

    def __init__(
        self,
        *,
        settings: ExtenderSettings,
        workers: Workers,
        membership: WorkerMembership,
        profiles: Mapping[str, HardwareProfile] | None,
        view: View,
        freshness: Freshness,
        metrics: Metrics,
        decisions: DecisionLog,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._view = view
        self._freshness = freshness
        self._clock = clock
        self.placer = Placer(workers, settings.requests, profiles, seed=f"{token_hex(SEED_BYTES)}-")
        self.placer.ledger.keep_ids_secret(token_bytes(SECRET_BYTES))
        self.placing = Placing(self.placer, metrics=metrics, decisions=decisions)
        self.feed = RequestFeed(self.placer, self.placing)
        """To be subscribed to the store."""
        self.kv = (
            KvFeed(self.placer, membership=membership, settings=settings.kv_events, clock=clock)
            if settings.kv_events.enabled
            else None
        )
        """Its followers are to be run; None: nobody's KV events are followed."""
        prompts = Prompts(
            self.placer,
            chunk_characters=settings.requests.index.chunk_characters,
            worker_at=Addresses(workers, clock=clock).worker_at,
        )
        self._answering = Answering(placing=self.placing, prompts=prompts, freshness=freshness, clock=clock)
        gateway = settings.gateway
        tokens = TokenFile(Path(gateway.token_file), clock=clock, line=token_and_tenant) if gateway.token_file else None
        self._auth = GatewayAuth(tokens, default_tenant=gateway.default_tenant)
        self.streams = Streams(
            answering=self._answering,
            auth=self._auth,
            frame_max_bytes=gateway.frame_max_bytes,
            streams_max=gateway.streams_max,
        )
        metrics.collect_from(self._metrics)

    async def open(self) -> None:
        """Read what has to be there from the start. Raises: ConfigError."""
        await self._auth.open()

    def tick(self, now_s: float) -> None:
        """Once a second."""
        self.placing.tick(now_s)
        doubted = self.placer.take_doubted()
        if self.kv is not None:
            self.kv.ask_anew(doubted)

    def uses(self, now_s: float) -> Sequence[RequestUse]:
        """What the tenants that quotas name have of requests."""
        return self.placer.limits.views(now_s)

    def routes(self) -> tuple[Route, ...]:
        """``/v1/placements`` and ``/v1/block-groups``."""
        gateway = self._settings.gateway
        return (
            *placement_routes(
                answering=self._answering,
                placer=self.placer,
                auth=self._auth,
                control=self._control,
                max_body_bytes=gateway.max_body_bytes,
                batch_max_body_bytes=gateway.batch_max_body_bytes,
            ),
            *stream_routes(self.streams),
            *block_group_routes(
                groups=self.placer.block_groups,
                view=self._view,
                freshness=self._freshness,
                auth=self._auth,
                control=self._control,
            ),
        )

    def express(self, otherwise: Handler) -> Handler:
        """What a listener's server calls first, ``otherwise`` what it called before."""
        return express(otherwise, answering=self._answering, auth=self._auth)

    def _control(self, tenant: str) -> LimitRefusal | None:
        return self.placer.limits.control(tenant, self._clock())

    def _metrics(self) -> Iterator[Metric]:
        yield from self.placing.counts.metrics()
        placer = self.placer
        yield gauge("kvaware_reservations", "Requests in flight that hold a place.", len(placer.ledger))
        yield gauge("kvaware_placement_streams", "Streams that are open.", len(self.streams))
        yield gauge("kvaware_block_index_bytes", "Memory of all block indexes.", placer.budget.size_bytes)
        yield gauge("kvaware_block_index_max_bytes", "The most that they may take.", placer.budget.max_bytes)
        yield counter(
            "kvaware_block_index_forgotten_groups", "Block groups forgotten for want of memory.",
            placer.budget.forgotten_groups,
        )  # fmt: skip
        blocks = GaugeMetricFamily("kvaware_block_index_blocks", "Blocks that are known of a model.", labels=["model"])
        for key, known in placer.index_blocks().items():
            blocks.add_metric([f"{key.namespace}/{key.name}"], known)
        yield blocks
        if self.kv is not None:
            yield from self.kv.metrics()
        yield from uses_of(self.uses(self._clock()))


def uses_of(uses: Sequence[RequestUse]) -> Iterator[Metric]:
    """Requests of tenants that quotas name, and what is left of their limits: below 0 is debt."""
    flying = GaugeMetricFamily("kvaware_tenant_requests", "The tenant's requests in flight.", labels=["tenant"])
    most = GaugeMetricFamily("kvaware_tenant_request_limit", "Limit of the tenant's requests.", labels=LIMIT)
    left = GaugeMetricFamily("kvaware_tenant_request_left", "What the limit has left now.", labels=LIMIT)
    for use in uses:
        flying.add_metric([use.tenant], use.concurrent_requests)
        for limit in use.limits:
            labels = [use.tenant, limit.quota, limit.limit.value]
            most.add_metric(labels, limit.at_most)
            left.add_metric(labels, limit.left)
    yield from (flying, most, left)
