"""Names by which requests ask for models: whose they are, and that the operator's condition says the same."""

from hypothesis import given
from hypothesis import strategies as st

from kvaware_engine.claims import Claims
from kvaware_engine.observations import ObjectKey
from kvaware_engine.requests.served_names import ServedNames
from kvaware_testing.builders import model

OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


def names(*models) -> ServedNames:
    served = ServedNames()
    for each in models:
        served.observe(each.key, each)
    return served


def test_a_name_that_two_claim_is_the_older_ones_until_it_lets_go():
    younger = model("younger", served_names=["chat", "only-mine"], created_at=NEW)
    elder = model("elder", served_names=["chat"], created_at=OLD)
    served = names(younger, elder)
    assert served.resolve("chat") == elder.key
    assert served.resolve("only-mine") == younger.key
    served.observe(elder.key, model("elder", served_names=["other"], created_at=OLD))
    assert served.resolve("chat") == younger.key
    served.observe(younger.key, None)
    assert (served.resolve("chat"), served.resolve("only-mine"), served.resolve("other")) == (None, None, elder.key)


def test_a_namespace_before_the_name_asks_for_its_own_model():
    """A request carries no namespace: without one, two teams' ``chat`` would be one team's."""
    one = model("a", namespace="one", served_names=["chat"], created_at=OLD)
    two = model("b", namespace="two", served_names=["chat"], created_at=NEW)
    served = names(one, two)
    assert served.resolve("chat") == one.key
    assert (served.resolve("one/chat"), served.resolve("two/chat")) == (one.key, two.key)
    assert (served.resolve("two/b"), served.resolve("two/a")) == (two.key, None)


def test_a_served_name_with_a_slash_is_nobodys_namespace():
    """Or a namespace called like an organization could take its models' requests away."""
    served_as = model("llama", namespace="ml", model_id="meta-llama/Llama", created_at=NEW)
    called_so = model("Llama", namespace="meta-llama", served_names=["x"], created_at=OLD)
    assert names(served_as, called_so).resolve("meta-llama/Llama") == served_as.key


def test_names_that_nobody_has_leave_nothing_behind():
    """llm-d-router#1625: a client could grow memory without end."""
    served = names(model("a", served_names=["chat"]))
    for number in range(100):
        assert served.resolve(f"made-up-{number}") is None
        assert served.resolve(f"ml/made-up-{number}") is None
    assert served.resolve("chat") is not None
    assert len(served._found) == 1


models = st.lists(
    st.tuples(
        st.sampled_from(["one", "two"]),
        st.sampled_from("abc"),
        st.sampled_from([OLD, NEW]),
        st.lists(st.sampled_from(["x", "y"]), unique=True),
    ),
    max_size=8,
)


@given(models)
def test_who_has_a_name_was_told_no_name_conflict(told):
    """The operator's condition is by the same rule within a namespace: ``Claims`` of namespace and name."""
    served, of_operator = ServedNames(), Claims[tuple[str, str]]()
    for namespace, name, created_at, called in told:
        key = ObjectKey(namespace, name)
        served.observe(key, model(name, namespace=namespace, served_names=called, created_at=created_at))
        of_operator.put(key, created_at, [(namespace, each) for each in called])
    for name in "xy":
        owner = served.resolve(name)
        if owner is not None:
            assert of_operator.owner((owner.namespace, name)) == owner
        for namespace in ("one", "two"):
            owner = of_operator.owner((namespace, name))
            if owner is not None:
                assert served.resolve(f"{namespace}/{name}") == owner
