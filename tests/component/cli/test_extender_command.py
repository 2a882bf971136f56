"""``kvaware extender``: the real process, started and stopped as people do, and what it says when it cannot start."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kvaware_cli.demo.process import running_extender
from kvaware_cli.extender_command import loop_factory, with_options
from kvaware_extender import ExtenderSettings
from kvaware_testing.command_line import Kvaware
from kvaware_testing.repository import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "cluster"


def test_options_go_before_settings_and_what_is_not_given_stays() -> None:
    settings = with_options(
        ExtenderSettings(api_host="10.0.0.1", api_port=1),
        host=None,
        api_port=None,
        scheduler_host=None,
        scheduler_port=7,
    )
    assert (settings.api_host, settings.api_port, settings.scheduler_port) == ("10.0.0.1", 1, 7)


def test_it_runs_on_uvloop_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has none; everything works there too, slower."""
    factory = loop_factory()
    assert factory is not None
    loop = factory()
    loop.close()
    assert type(loop).__module__.startswith("uvloop")
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory() is None


def test_host_moves_only_the_api() -> None:
    """Whoever reaches the scheduler's listener can place pods: it is opened by an option of its own."""
    settings = with_options(ExtenderSettings(), host="0.0.0.0", api_port=None, scheduler_host=None, scheduler_port=None)
    assert (settings.api_host, settings.scheduler_host) == ("0.0.0.0", "127.0.0.1")
    settings = with_options(
        ExtenderSettings(), host=None, api_port=None, scheduler_host="127.0.0.2", scheduler_port=None
    )
    assert (settings.api_host, settings.scheduler_host) == ("127.0.0.1", "127.0.0.2")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param(("--cluster-dir", "nowhere"), "--cluster-dir: expected a folder with YAML files", id="no folder"),
        pytest.param(("--kubeconfig", "nowhere"), "--kubeconfig: expected a file, got 'nowhere'", id="no kubeconfig"),
        pytest.param(("--kubeconfig", "a", "--cluster-dir", "b"), "expected either --kubeconfig or", id="both"),
        pytest.param(("--config", "nowhere", "--cluster-dir", "."), "nowhere", id="no settings file"),
        pytest.param(("--scheduler-port", "70000"), "65535", id="no port"),
    ],
)
def test_wrong_use_says_what_was_expected(kvaware: Kvaware, args: tuple[str, ...], expected: str) -> None:
    result = kvaware("extender", *args)
    assert result.code == 2
    assert expected in result.err
    assert "Traceback" not in result.err


def test_an_unknown_setting_is_named(kvaware: Kvaware, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("apiPrt: 1\n")
    result = kvaware("extender", "--config", str(config), "--cluster-dir", str(EXAMPLE))
    assert result.code == 2
    assert "apiPrt" in result.err
    assert "apiPort" in result.err


def test_without_credentials_it_says_where_they_were_looked_for(
    kvaware: Kvaware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    result = kvaware("extender")
    assert result.code == 2
    [line] = result.err.splitlines()
    assert f"expected Kubernetes credentials in {tmp_path / 'config'}" in line
    assert "--kubeconfig" in line


def test_a_decision_log_that_cannot_be_written_is_named_by_its_setting(tmp_path: Path) -> None:
    done = start("--api-port", "0", "--scheduler-port", "0", decision_log=str(tmp_path / "no" / "log"))
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if line.startswith("kvaware: error:")]
    assert "setting decisionLog" in line
    assert "listen" not in line


def test_settings_nested_too_deeply_are_one_line(kvaware: Kvaware, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("a: " + "[" * 3000 + "]" * 3000)
    result = kvaware("extender", "--config", str(config), "--cluster-dir", str(EXAMPLE))
    assert result.code == 2
    assert "config.yaml" in result.err
    assert len(result.err.splitlines()) == 1


def start(*args: str, decision_log: str = "off") -> "subprocess.CompletedProcess[str]":
    """An extender that is expected not to start."""
    command = [sys.executable, "-m", "kvaware_cli", "extender", "--cluster-dir", str(EXAMPLE), *args]
    environ = {**os.environ, "KVAWARE_DECISION_LOG": decision_log}
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=environ)


@pytest.mark.parametrize(("option", "other"), [("--scheduler-port", "--api-port"), ("--api-port", "--scheduler-port")])
def test_a_port_in_use_is_one_line_that_names_the_option(option: str, other: str) -> None:
    """The commonest reason why a second one does not start."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = start(option, port, other, "0")
    assert done.returncode == 1
    [line] = [line for line in done.stderr.splitlines() if line.startswith("kvaware: error:")]
    assert f"127.0.0.1:{port}: address already in use" in line
    assert option in line
    assert "Traceback" not in done.stderr


def test_the_folder_is_served_and_a_signal_ends_it_in_order() -> None:
    """What the demo and ``kvaware top`` on a folder rely on; the log is JSON where nobody watches."""
    with running_extender(EXAMPLE) as extender:
        names = {node["name"] for node in extender.api.nodes()["items"]}
        assert {"h100-a1", "mi300x-b6"} <= names
        extender.process.send_signal(signal.SIGTERM)
        assert extender.process.wait(10) == 0
        assert '"event": "stopping"' in extender.log.read_text()
