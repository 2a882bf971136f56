"""Fixtures of the e2e tests: one control plane per run, a namespace and nodes per test, our real extender between."""

import os
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvaware_crds import render_crds
from kvaware_testing.controlplane import (
    Binaries,
    BuildFailedError,
    ControlPlane,
    Process,
    UnavailableError,
    obtain,
)
from kvaware_testing.controlplane.extender import ExtenderProcess
from kvaware_testing.controlplane.operator_world import OperatorWorld
from kvaware_testing.controlplane.sandbox import Sandbox
from kvaware_testing.controlplane.workers_under_kwok import ModelServer, model_server

REQUIRED_BY = "REQUIRE_E2E"
"""Set to 1 (as ``.ci/run`` does) a missing control plane fails the run instead of skipping it."""


_PROGRAMS: pytest.StashKey[Binaries | UnavailableError | BuildFailedError] = pytest.StashKey()
"""Looked for once in a run, the failure included: a broken build is not tried again for every test."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have the programs before the first test.

    Not in a fixture: pytest reports a fixture's skip once for each test, and this one should be a single line.
    """
    if _PROGRAMS not in item.config.stash:
        item.config.stash[_PROGRAMS] = _programs(item.config)
    match item.config.stash[_PROGRAMS]:
        case UnavailableError() as error if os.environ.get(REQUIRED_BY) != "1":
            pytest.skip(str(error))
        case UnavailableError() | BuildFailedError() as error:
            pytest.fail(str(error), pytrace=False)


def _programs(config: pytest.Config) -> Binaries | UnavailableError | BuildFailedError:
    capture = config.pluginmanager.getplugin("capturemanager")

    def report(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", flush=True)

    try:
        return obtain(report=report)
    except (UnavailableError, BuildFailedError) as error:
        return error


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Binaries:
    """Where the control plane's programs are, helm included."""
    binaries = request.config.stash[_PROGRAMS]
    assert isinstance(binaries, Binaries)
    return binaries


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory, programs: Binaries) -> Iterator[ControlPlane]:
    """A real control plane with kvaware's CRDs; its logs stay in pytest's temporary folder."""
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), programs) as running:
        running.apply_text("---\n".join(render_crds().values()))
        running.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        yield running


@pytest.fixture
def sandbox(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A namespace of the test's own, and the nodes, quotas and other objects that it adds; all gone afterwards."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:30].strip("-")
    with Sandbox(control_plane, f"{words}-{uuid.uuid4().hex[:6]}") as made:
        yield made


@pytest.fixture
def namespace(sandbox: Sandbox) -> str:
    """The name of the test's own namespace."""
    return sandbox.namespace


@pytest.fixture
def extender(control_plane: ControlPlane, tmp_path: Path) -> Iterator[ExtenderProcess]:
    """Our real extender, ready, with the rights of its ServiceAccount."""
    kubeconfig = control_plane.service_account_kubeconfig("kvaware-system", "kvaware-extender")
    with ExtenderProcess(tmp_path, kubeconfig) as process:
        yield process


@pytest.fixture
def start_scheduler(control_plane: ControlPlane) -> Iterator[Callable[..., Process]]:
    """Start kvaware's kube-scheduler against any extender; stopped after the test."""
    try:
        yield control_plane.start_scheduler
    finally:
        control_plane.stop_scheduler()


@pytest.fixture
def scheduler(extender: ExtenderProcess, start_scheduler: Callable[..., Process]) -> Process:
    """Start the real kube-scheduler, calling our extender."""
    return start_scheduler(extender.scheduler_url)


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorWorld]:
    """Our extender, kube-scheduler with it and our operator, once for all tests of a file: a start takes seconds."""
    with OperatorWorld(control_plane, tmp_path_factory.mktemp("operator-world")) as running:
        yield running


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A model server behind the pods of one model."""
    with model_server() as running:
        yield running
