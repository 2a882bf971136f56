"""limits.blockGroups: of a tenant's block groups the oldest are within, and whoever's place changes is looked at."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvaware_engine.observations import ObjectKey
from kvaware_operator.group_limits import GroupLimit, GroupLimits


def key(name: str, namespace: str = "ml") -> ObjectKey:
    return ObjectKey(namespace, name)


def limited(at_most: int | None = 2) -> GroupLimits:
    """Tenant a with two namespaces."""
    limits = GroupLimits()
    limits.put_quota("team-a", "a", at_most)
    limits.put_namespaces([("ml", "a"), ("batch", "a")])
    return limits


def test_the_youngest_are_beyond_wherever_in_the_tenants_namespaces():
    limits = limited()
    limits.put_group(key("old"), "2026-01-01")
    limits.put_group(key("young", "batch"), "2026-03-01")
    limits.put_group(key("middle"), "2026-02-01")
    limits.put_group(key("other", "elsewhere"), "2026-04-01")
    assert limits.beyond(key("young", "batch")) == GroupLimit(2, "team-a")
    assert {limits.beyond(each) for each in (key("old"), key("middle"), key("other", "elsewhere"))} == {None}
    assert limits.count("a") == 3


def test_who_is_pushed_out_and_who_moves_up_is_looked_at():
    limits = limited()
    limits.put_group(key("b"), "2026-02-01")
    limits.put_group(key("c"), "2026-03-01")
    assert limits.put_group(key("a"), "2026-01-01") == {key("a"), key("c")}, "restored from a backup, older than all"
    assert limits.put_group(key("d"), "2026-04-01") == {key("d"), key("c")}
    assert limits.put_group(key("a"), None) == {key("c")}
    assert limits.beyond(key("c")) is None
    assert limits.put_group(key("d"), None) == {key("c")}


def test_of_several_quotas_the_least_holds_and_unset_is_no_limit():
    limits = limited(3)
    limits.put_quota("unset", "a", None)
    limits.put_group(key("g"), "2026-01-01")
    assert limits.beyond(key("g")) is None
    assert limits.put_quota("none", "a", 0) == {key("g")}
    assert limits.beyond(key("g")) == GroupLimit(0, "none"), "0 is nothing (Project-HAMi/HAMi#2312)"
    assert limits.quotas_for("ml") == ["none", "team-a", "unset"]
    assert limits.put_quota("none", "a", None, gone=True) == {key("g")}
    assert limits.beyond(key("g")) is None


PLACES = st.tuples(st.sampled_from(["n0", "n1", "n2"]), st.sampled_from(["g0", "g1", "g2", "g3"]))
TENANTS = st.sampled_from(["a", "b"])


class Groups(RuleBasedStateMachine):
    """Beside a plain recount: ranks agree, and every group whose answer changes is among those returned."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = GroupLimits()
        self.groups: dict[ObjectKey, str] = {}
        self.tenants: dict[str, str] = {}
        self.quotas: dict[tuple[str, str], int | None] = {}
        self.said: dict[ObjectKey, GroupLimit | None] = {}

    def _told(self, touched: set[ObjectKey]) -> None:
        for each in touched:
            self.said[each] = self.limits.beyond(each)

    @rule(place=PLACES, created_at=st.none() | st.integers(0, 5))
    def group(self, place: tuple[str, str], created_at: int | None) -> None:
        where = ObjectKey(*place)
        self.groups.pop(where, None)
        if created_at is not None:
            self.groups[where] = str(created_at)
        self._told(self.limits.put_group(where, self.groups.get(where)))

    @rule(namespace=st.sampled_from(["n0", "n1", "n2"]), tenant=st.none() | TENANTS)
    def namespace(self, namespace: str, tenant: str | None) -> None:
        self.tenants.pop(namespace, None)
        if tenant is not None:
            self.tenants[namespace] = tenant
        self._told(self.limits.put_namespaces([(namespace, tenant)]))

    @rule(name=st.sampled_from(["q0", "q1"]), tenant=TENANTS, at_most=st.none() | st.integers(0, 4), gone=st.booleans())
    def quota(self, name: str, tenant: str, at_most: int | None, *, gone: bool) -> None:
        self.quotas.pop((tenant, name), None)
        if not gone:
            self.quotas[tenant, name] = at_most
        self._told(self.limits.put_quota(name, tenant, at_most, gone=gone))

    @invariant()
    def agrees_with_a_recount(self) -> None:
        for tenant in ("a", "b"):
            own = sorted((at, each) for each, at in self.groups.items() if self.tenants.get(each.namespace) == tenant)
            set_ = [
                GroupLimit(most, name) for (of, name), most in self.quotas.items() if of == tenant and most is not None
            ]
            limit = min(set_, default=None)
            assert (self.limits.count(tenant), self.limits.limit(tenant)) == (len(own), limit)
            for place, (_, each) in enumerate(own):
                expected = limit if limit is not None and place >= limit.at_most else None
                assert self.limits.beyond(each) == self.said[each] == expected
        assert set(self.limits._of) <= {"a", "b"}


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
