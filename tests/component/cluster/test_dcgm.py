"""The texts in ``data/`` are written by hand in the exporter's format, with its labels and its blank values."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from kvaware_cluster import Change, DcgmSettings, ExporterTarget, Kind, StoreSettings, WorkerError, parse_dcgm
from kvaware_cluster.dcgm_scraper import DcgmScraper
from kvaware_crds.errors import WireError
from kvaware_engine.observations import NodeUse, ObjectKey
from kvaware_testing.fake_api import raw_pod
from kvaware_testing.store_harness import connected, running

MIB = 2**20
DATA = Path(__file__).parent / "data"
WHOLE = (DATA / "dcgm-h100-whole.txt").read_text()
MIXED = (DATA / "dcgm-a100-mig-mixed.txt").read_text()


def test_whole_gpus_are_read_in_bytes_with_their_pods():
    use = parse_dcgm(WHOLE, node="n1", observed_at_s=12.5)
    assert (use.node, use.observed_at_s) == ("n1", 12.5)
    assert [gpu.index for gpu in use.gpus] == list(range(8))
    first = use.gpus[0]
    assert (first.used_bytes, first.free_bytes) == (71240 * MIB, 9660 * MIB)
    assert first.pod == ObjectKey("ml", "llama-70b-0")
    assert first.uuid.startswith("GPU-")
    assert use.gpus[3].used_bytes == 18432 * MIB  # nobody's pod: used by a program that no scheduler placed
    assert use.gpus[3].pod is None


def test_blank_values_are_unknown_not_nine_exabytes():
    """DCGM writes numbers near 2^63 for "not supported"; NaN is as little a size."""
    gpu = parse_dcgm(WHOLE, node="n1", observed_at_s=0).gpus[6]
    assert (gpu.used_bytes, gpu.free_bytes) == (None, None)
    whole = parse_dcgm(MIXED, node="n1", observed_at_s=0).gpus[-1]
    assert (whole.index, whole.used_bytes, whole.free_bytes) == (1, None, 40326 * MIB)


def test_mig_slices_are_told_apart():
    use = parse_dcgm(MIXED, node="n1", observed_at_s=0)
    slices = [gpu for gpu in use.gpus if gpu.mig_profile == "1g.5gb"]
    assert len(slices) == 4
    assert len({gpu.uuid for gpu in slices}) == 4
    held = [gpu for gpu in slices if gpu.pod is not None]
    assert [(gpu.pod, gpu.used_bytes) for gpu in held] == [(ObjectKey("ml", "embed-5d8f9c7b6-x2x7p"), 4101 * MIB)]


@pytest.mark.parametrize(
    ("labels", "profile"),
    [
        ('GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"', "1g.10gb"),
        ('GPU_I_PROFILE="1g.10gb+me",GPU_I_ID="7"', "1g.10gb.me"),
        ('GPU_I_PROFILE="1c.2g.20gb",GPU_I_ID="7"', "1c.2g.20gb"),
        ('GPU_I_PROFILE="",GPU_I_ID="7"', "unknown"),
        ('GPU_I_PROFILE="",GPU_I_ID=""', None),
        ('pod=""', None),
    ],
)
def test_a_slices_profile_is_spelled_as_in_its_resource(labels: str, profile: str | None):
    """DCGM says 1g.10gb+me of what Kubernetes calls nvidia.com/mig-1g.10gb.me."""
    (gpu,) = parse_dcgm(f'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-1",{labels}}} 1', node="n1", observed_at_s=0).gpus
    assert gpu.mig_profile == profile


def test_a_gpu_repeated_for_each_pod_that_shares_it_names_none():
    text = "\n".join(f'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-1",namespace="ml",pod="p{n}"}} 100' for n in range(2))
    (gpu,) = parse_dcgm(text, node="n1", observed_at_s=0).gpus
    assert (gpu.used_bytes, gpu.pod) == (100 * MIB, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>not found</html>",
        'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 5\n',
        'DCGM_FI_DEV_FB_USED{gpu="0",UUID="x"} lots\n',
        'DCGM_FI_DEV_FB_USED{gpu="0"\n',
        'DCGM_FI_DEV_FB_USED{gpu="nvswitch0"} 5\n',
    ],
)
def test_a_text_without_any_gpus_memory_is_a_wire_error(text: str):
    """An exporter that shows nothing is unknown use, not no use."""
    with pytest.raises(WireError, match="n1"):
        parse_dcgm(text, node="n1", observed_at_s=0)


class Scraped:
    """Exporters that answer as told, and what the scraper makes of it."""

    def __init__(self) -> None:
        self.answers: dict[str, str | Exception] = {}
        """By the exporter's UID, else by node."""
        self.asked: list[str] = []
        self.uses: list[tuple[str, NodeUse | None]] = []
        self.at_once = 0
        self.most_at_once = 0
        self.hold = asyncio.Event()
        self.hold.set()
        self.news = asyncio.Event()
        self.now_s = 50.0

    async def read(self, target: ExporterTarget) -> str:
        self.asked.append(target.address)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.news.set()
        try:
            await self.hold.wait()
            answer = self.answers.get(target.uid) or self.answers[target.node]
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            self.at_once -= 1

    def used(self, node: str, use: NodeUse | None) -> None:
        self.uses.append((node, use))
        self.news.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.uses) < count:
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def scraping(scraped: Scraped, **settings: float) -> AsyncIterator[DcgmScraper]:
    quick = {"interval_s": 0.01, "slow_after_misses_interval_s": 0.02} | settings
    scraper = DcgmScraper(
        scraped.read,
        settings=DcgmSettings(**quick),  # type: ignore[arg-type]  # a test's mixed figures
        clock=lambda: scraped.now_s,
        rng=random.Random(1),  # noqa: S311  # jitter
        used=scraped.used,
    )
    task = asyncio.create_task(scraper.run())
    try:
        yield scraper
    finally:
        task.cancel()
        await asyncio.wait([task])


def target(node: str, uid: str = "u1", created_at: str = "") -> ExporterTarget:
    return ExporterTarget(uid=uid, node=node, address=f"{node}:9400", created_at=created_at)


def appear(scraper: DcgmScraper, node: str, uid: str = "u1", created_at: str = "") -> None:
    new = target(node, uid, created_at)
    scraper.changed(Change("exporter", ObjectKey("gpu-operator", f"dcgm-{node}-{uid}"), None, new))


def vanish(scraper: DcgmScraper, node: str, uid: str = "u1") -> None:
    scraper.changed(Change("exporter", ObjectKey("gpu-operator", f"dcgm-{node}-{uid}"), target(node, uid), None))


async def test_an_exporter_is_scraped_again_and_again_and_its_age_is_that_of_the_question():
    """A scrape may still show what was deleted while it ran: its time is when it began."""
    scraped = Scraped()
    scraped.answers["n1"] = WHOLE
    async with scraping(scraped) as scraper:
        appear(scraper, "n1")
        await scraped.until(3)
    assert all(node == "n1" and use is not None and use.observed_at_s == 50.0 for node, use in scraped.uses)


async def test_use_is_unknown_after_missed_scrapes_and_known_again_at_the_next_good_one():
    scraped = Scraped()
    scraped.answers["n1"] = WHOLE
    async with scraping(scraped, missed_limit=3) as scraper:
        appear(scraper, "n1")
        await scraped.until(1)
        asked = len(scraped.asked)
        scraped.answers["n1"] = WorkerError("no answer")
        while scraped.uses[-1][1] is not None:
            await scraped.until(len(scraped.uses) + 1)
        assert len(scraped.asked) - asked >= 3
        scraped.answers["n1"] = WHOLE
        await scraped.until(len(scraped.uses) + 1)
    assert scraped.uses[-1][1] is not None


async def test_the_first_round_is_over_when_every_exporter_was_tried_or_the_time_is_up():
    """Before it, a GPU that somebody else fills would look free. A dead exporter must not hold it up for ever."""
    scraped = Scraped()
    scraped.answers |= {"n1": WHOLE, "n2": WorkerError("no answer")}
    scraped.hold.clear()
    async with scraping(scraped, first_round_limit_s=30) as scraper:
        appear(scraper, "n1")
        appear(scraper, "n2")
        assert not scraper.went_round()
        scraped.hold.set()
        await scraped.until(3)
        async with asyncio.timeout(30):
            while not scraper.went_round():  # noqa: ASYNC110  # the scraper has no event for it
                await asyncio.sleep(0)
    scraped.hold.clear()
    async with scraping(scraped, first_round_limit_s=30) as scraper:
        appear(scraper, "n1")
        assert not scraper.went_round()
        scraped.now_s += 30
        assert scraper.went_round()


async def test_an_answer_that_cannot_be_read_is_a_missed_one():
    scraped = Scraped()
    scraped.answers["n1"] = "<html>"
    scraped.answers["n2"] = WHOLE
    async with scraping(scraped, missed_limit=1) as scraper:
        appear(scraper, "n1")
        appear(scraper, "n2")
        await scraped.until(3)
    assert {node for node, _ in scraped.uses} == {"n2"}


async def test_the_use_goes_with_the_exporter_but_not_with_the_first_of_two():
    """A DaemonSet's roll-out shows two pods of one node for a moment."""
    scraped = Scraped()
    scraped.answers["n1"] = WHOLE
    async with scraping(scraped, interval_s=0.01) as scraper:
        appear(scraper, "n1", "old")
        await scraped.until(1)
        appear(scraper, "n1", "new")
        vanish(scraper, "n1", "old")
        assert scraped.uses[-1][1] is not None
        await scraped.until(len(scraped.uses) + 1)
        vanish(scraper, "n1", "new")
        assert scraped.uses[-1] == ("n1", None)


EMPTY = 'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1"} 0'
"""What a liar says: nothing is in use."""


async def test_the_oldest_exporter_of_a_node_is_believed_and_no_pod_that_joins():
    """Whoever puts the label on a pod of theirs must not say what the node's GPUs hold."""
    scraped = Scraped()
    scraped.answers |= {"liar": EMPTY, "real": WHOLE}
    async with scraping(scraped) as scraper:
        appear(scraper, "n1", "liar", "2026-02-01T00:00:00Z")
        appear(scraper, "n1", "real", "2026-01-01T00:00:00Z")
        await scraped.until(5)
    assert {len(use.gpus) for _, use in scraped.uses} == {8}


async def test_the_next_exporter_is_asked_only_when_the_oldest_is_dead_and_until_it_is_back():
    scraped = Scraped()
    scraped.answers |= {"next": EMPTY, "oldest": WHOLE}
    async with scraping(scraped, missed_limit=3, slow_after_misses_interval_s=60) as scraper:
        appear(scraper, "n1", "next", "2026-02-01T00:00:00Z")
        appear(scraper, "n1", "oldest", "2026-01-01T00:00:00Z")
        await scraped.until(1)
        asked = len(scraped.asked)
        # when: three misses
        scraped.answers["oldest"] = WorkerError("no answer")
        while len(scraped.uses[-1][1].gpus) == 8:
            await scraped.until(len(scraped.uses) + 1)
        # then
        assert len(scraped.asked) - asked >= 4
        assert None not in [use for _, use in scraped.uses]
        # when: it answers again, and its time to be tried comes
        scraped.answers["oldest"] = WHOLE
        await scraped.until(len(scraped.uses) + 3)
        assert len(scraped.uses[-1][1].gpus) == 1
        scraped.now_s += 60
        while len(scraped.uses[-1][1].gpus) == 1:
            await scraped.until(len(scraped.uses) + 1)


async def test_the_use_is_unknown_only_when_no_exporter_of_the_node_answers():
    scraped = Scraped()
    scraped.answers |= {"a": WHOLE, "b": WorkerError("no answer")}
    async with scraping(scraped, missed_limit=1) as scraper:
        appear(scraper, "n1", "a", "2026-01-01T00:00:00Z")
        appear(scraper, "n1", "b", "2026-02-01T00:00:00Z")
        await scraped.until(1)
        scraped.answers["a"] = WorkerError("no answer")
        while scraped.uses[-1][1] is not None:
            await scraped.until(len(scraped.uses) + 1)
        scraped.answers["b"] = WHOLE
        await scraped.until(len(scraped.uses) + 1)
    assert len(scraped.uses[-1][1].gpus) == 8


async def test_scrapes_are_bounded_and_dead_exporters_do_not_stop_the_others():
    scraped = Scraped()
    scraped.hold.clear()
    async with scraping(scraped, concurrency=4) as scraper:
        for number in range(20):
            scraped.answers[f"n{number}"] = WHOLE
            appear(scraper, f"n{number}")
        async with asyncio.timeout(30):
            while len(scraped.asked) < 4:
                scraped.news.clear()
                await scraped.news.wait()
        scraped.hold.set()
        await scraped.until(20)
    assert scraped.most_at_once == 4
    assert len(set(scraped.asked)) == 20


async def test_a_listener_that_raises_does_not_end_the_scrapes():
    scraped = Scraped()
    scraped.answers["n1"] = WHOLE
    told = 0

    def used(node: str, use: NodeUse | None) -> None:
        nonlocal told
        told += 1
        if told == 1:
            raise RuntimeError("listener")
        scraped.used(node, use)

    async with scraping(scraped) as scraper:
        scraper._used = used
        appear(scraper, "n1")
        await scraped.until(1)
    assert told >= 2


@asynccontextmanager
async def exporter(text: str, *, status: int = 200) -> AsyncIterator[int]:
    app = web.Application()

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def exporter_pod(port: int, name: str = "dcgm-exporter-x2x7p", *, node: str = "n1", namespace: str = "gpu-operator"):
    raw = raw_pod(
        name,
        namespace=namespace,
        gpus=0,
        node=node,
        labels={"app": "nvidia-dcgm-exporter"},
        podIP="127.0.0.1",
    )
    raw["spec"]["containers"][0]["ports"] = [{"name": "metrics", "containerPort": port}]
    return raw


async def test_the_store_finds_exporter_pods_and_scrapes_them_over_http(api, source, make_store, recorder):
    """The exporter's pod asks for no GPU, so it is no observed pod, and is still found."""
    settings = StoreSettings(dcgm=DcgmSettings(interval_s=0.02))
    async with exporter(WHOLE) as port:
        await api.put("pod", exporter_pod(port))
        store = make_store(source, settings)
        async with running(store):
            await recorder.until(lambda: len(recorder.uses) >= 2)
            assert recorder.names(Kind.POD) == set()
            await api.delete("pod", "gpu-operator", "dcgm-exporter-x2x7p")
            await recorder.until(lambda: recorder.uses[-1] == ("n1", None))
    node, use = recorder.uses[0]
    assert node == "n1"
    assert use is not None
    assert len(use.gpus) == 8


async def test_a_tenants_pod_with_the_exporters_label_is_not_believed(api, source, make_store, recorder, logs):
    """Its answer would make the node's HBM look free, or full."""
    settings = StoreSettings(dcgm=DcgmSettings(interval_s=0.02))
    async with exporter(WHOLE) as port, exporter(EMPTY) as lies:
        for number in range(3):
            await api.put("pod", exporter_pod(lies, f"liar-{number}", namespace="tenant-a"))
        await api.put("pod", exporter_pod(port))
        store = make_store(source, settings)
        async with running(store):
            await recorder.until(lambda: len(recorder.uses) >= 3)
    assert {len(use.gpus) for _, use in recorder.uses} == {8}
    told = [(each["namespace"], each["setting"]) for each in logs if each["event"] == "exporter passed over"]
    assert told == [("tenant-a", "store.dcgm.namespaces")]


async def test_any_namespace_is_a_choice(api, source, make_store, recorder):
    settings = StoreSettings(dcgm=DcgmSettings(interval_s=0.02, namespaces=()))
    async with exporter(WHOLE) as port:
        await api.put("pod", exporter_pod(port, namespace="observability"))
        store = make_store(source, settings)
        async with running(store):
            await recorder.until(lambda: len(recorder.uses) >= 1)
    assert recorder.uses[0][0] == "n1"


@pytest.mark.parametrize(("text", "status"), [("x" * 5000, 200), (WHOLE, 500)])
async def test_oversized_and_failed_answers_are_worker_errors(api, text: str, status: int):
    async with exporter(text, status=status) as port, connected(api, exporter_body_bytes=1000) as source:
        with pytest.raises(WorkerError):
            await source.read_exporter(ExporterTarget(uid="u", node="n1", address=f"127.0.0.1:{port}"))


async def test_an_exporter_that_is_not_there_is_a_worker_error(api, source):
    with pytest.raises(WorkerError):
        await source.read_exporter(ExporterTarget(uid="u", node="n1", address="127.0.0.1:1"))


async def test_an_exporter_that_never_answers_is_given_up_in_time(api):
    """It would hold one of the few places for scrapes."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server, connected(api, exporter_timeout_s=0.05) as source:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(WorkerError):
            await source.read_exporter(ExporterTarget(uid="u", node="n1", address=f"127.0.0.1:{port}"))
