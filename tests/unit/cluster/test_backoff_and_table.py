import random
from typing import Any

import pytest

from kvaware_cluster import Change, parse_pod
from kvaware_cluster.backoff import Backoff
from kvaware_cluster.table import Table
from kvaware_crds.errors import WireError
from kvaware_engine.observations import ObjectKey
from kvaware_testing.fake_api import raw_pod

KEY = ObjectKey("ml", "p1")


def test_waits_double_up_to_the_cap_and_start_over():
    waits = Backoff(0.2, 10.0, random.Random(1))  # noqa: S311  # jitter
    for ceiling in (0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0):
        assert ceiling / 2 <= waits.next_s() <= ceiling
    for _ in range(2000):
        assert waits.next_s() <= 10.0
    waits.reset()
    assert waits.next_s() <= 0.2


def pod(uid: str = "u1", **more: Any) -> dict[str, Any]:
    raw = raw_pod(**more)
    raw["metadata"]["uid"] = uid
    return raw


class Told:
    """A listener and what it was told."""

    def __init__(self) -> None:
        self.changes: list[Change[Any]] = []
        self.unreadable: list[Exception] = []
        self.fails = False

    def table(self, parse: Any = parse_pod) -> Table[Any]:
        return Table("pod", parse, notify=self.notify, unreadable=lambda key, error: self.unreadable.append(error))

    def notify(self, change: Change[Any]) -> None:
        if self.fails:
            raise RuntimeError("listener")
        self.changes.append(change)


def test_another_uid_under_the_same_name_is_a_removal_and_an_addition():
    """Project-HAMi/HAMi#2923: what the old pod held must go with it."""
    told = Told()
    table = told.table()
    table.put(KEY, pod("u1"))
    table.put(KEY, pod("u2"))
    assert [(c.old and c.old.uid, c.new and c.new.uid) for c in told.changes] == [
        (None, "u1"),
        ("u1", None),
        (None, "u2"),
    ]


def test_a_late_deletion_of_the_old_one_leaves_the_new_one():
    told = Told()
    table = told.table()
    table.put(KEY, pod("u2"))
    table.remove(KEY, "u1")
    assert table.get(KEY).uid == "u2"
    table.remove(KEY, "u2")
    assert table.get(KEY) is None


def test_equal_values_tell_nothing():
    told = Told()
    table = told.table()
    table.put(KEY, pod())
    table.put(KEY, pod(phase="Pending"))
    assert len(told.changes) == 1


def test_a_list_removes_what_it_does_not_hold():
    told = Told()
    table = told.table()
    for name in ("a", "b"):
        table.put(ObjectKey("ml", name), pod(name, name=name))
    table.begin_list()
    table.see(ObjectKey("ml", "b"), pod("b", name="b"))
    table.end_list()
    assert set(table.objects) == {ObjectKey("ml", "b")}
    assert told.changes[-1].new is None


def test_a_change_that_the_listener_did_not_take_is_told_again():
    """A listener that raised must not stay behind for ever."""
    told = Told()
    table = told.table()
    told.fails = True
    with pytest.raises(RuntimeError):
        table.put(KEY, pod())
    assert table.get(KEY) is None
    told.fails = False
    table.put(KEY, pod())
    assert len(told.changes) == 1


def test_an_object_that_cannot_be_read_leaves_what_was_known_even_in_a_list():
    """Dropping it would hand out the GPUs that it holds."""
    told = Told()
    broken = False

    def parse(raw: dict[str, Any]) -> Any:
        if broken:
            raise WireError("expected something else")
        return parse_pod(raw)

    table = told.table(parse)
    table.put(KEY, pod())
    broken = True
    table.put(KEY, pod())
    table.begin_list()
    table.see(KEY, pod())
    table.end_list()
    assert table.get(KEY) is not None
    assert len(told.unreadable) == 2


def test_a_pod_that_lost_its_gpus_and_label_is_removed():
    told = Told()
    table = told.table()
    table.put(KEY, pod())
    table.put(KEY, pod(gpus=0))
    assert table.get(KEY) is None
