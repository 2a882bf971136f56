"""Whose a request is: a gateway's token, and the tenant that it names."""

import pytest

from kvaware_crds.errors import ConfigError
from kvaware_extender.errors import ApiError
from kvaware_extender.gateway_auth import GatewayAuth, token_and_tenant
from kvaware_extender.token_file import TokenFile
from kvaware_testing.store_harness import FakeClock

ANY = "a-token-for-any-tenant"
OWN = "a-token-of-one-tenant-"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def auth(tmp_path, clock) -> GatewayAuth:
    path = tmp_path / "tokens"
    path.write_text(f"# gateways\n{ANY}\n\n  {OWN}   team-a  \n")
    auth = GatewayAuth(TokenFile(path, clock=clock, line=token_and_tenant), default_tenant="default")
    await auth.open()
    return auth


def headers(token: str | None = None, tenant: str | None = None) -> dict[str, str]:
    sent = {} if token is None else {"Authorization": token}
    return sent if tenant is None else {**sent, "x-kvaware-tenant": tenant}


@pytest.mark.parametrize(
    ("sent", "tenant"),
    [
        pytest.param(headers(), "default", id="no token"),
        pytest.param(headers(tenant="team-b"), "default", id="a tenant without a token is ignored"),
        pytest.param(headers(f"Bearer {ANY}"), "default", id="a token alone"),
        pytest.param(headers(f"Bearer {ANY}", "team-b"), "team-b", id="a token and a tenant"),
        pytest.param(headers(f"bearer {OWN}"), "team-a", id="a tenant's own token"),
        pytest.param(headers(f"Bearer {OWN}", "team-a"), "team-a", id="a tenant's own token and its name"),
    ],
)
async def test_the_tenant_is_whom_an_authenticated_gateway_names(auth, sent, tenant):
    assert await auth.tenant(sent) == tenant


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(headers("Bearer wrong-token-wrong-token", "team-b"), 401, id="wrong token"),
        pytest.param(headers("Bearer "), 401, id="no token in the header"),
        pytest.param(headers(""), 401, id="an empty header"),
        pytest.param(headers(f"Basic {ANY}"), 401, id="another scheme"),
        pytest.param(headers(f"Bearer {ANY} team-b"), 401, id="the line, not the token"),
        pytest.param(headers("Bearer " + "x" * 100_000), 401, id="a book"),
        pytest.param(headers("Bearer # gateways"), 401, id="the comment"),
        pytest.param(headers(f"Bearer {OWN}", "team-b"), 403, id="another one's tenant"),
        pytest.param(headers(f"Bearer {ANY}", ""), 400, id="an empty tenant"),
        pytest.param(headers(f"Bearer {ANY}", "a" * 64), 400, id="a long tenant"),
        pytest.param(headers(f"Bearer {ANY}", "a b"), 400, id="two words"),
        pytest.param(headers(f"Bearer {ANY}", "team-a\n"), 400, id="a line end"),
        pytest.param(headers(f"Bearer {ANY}", "-a"), 400, id="a dash first"),
    ],
)
async def test_a_wrong_token_or_tenant_is_refused(auth, sent, status):
    with pytest.raises(ApiError) as error:
        await auth.tenant(sent)
    assert error.value.status == status
    assert ANY not in error.value.message
    if status == 401:
        assert error.value.headers == {"WWW-Authenticate": 'Bearer realm="kvaware"'}


async def test_without_a_token_file_everybody_is_the_default_tenant():
    """Headers that a proxy adds for others do no harm where gateways have no tokens."""
    auth = GatewayAuth(None, default_tenant="all")
    await auth.open()
    assert await auth.tenant(headers(f"Bearer {ANY}", "team-b")) == "all"


async def test_a_token_is_in_force_and_out_of_it_with_its_line(auth, clock, tmp_path):
    new = "a-token-that-came-later"
    with pytest.raises(ApiError):
        await auth.tenant(headers(f"Bearer {new}"))
    (tmp_path / "tokens").write_text(f"{new} team-c\n")
    clock.now_s += 1
    assert await auth.tenant(headers(f"Bearer {new}")) == "team-c"
    with pytest.raises(ApiError):
        await auth.tenant(headers(f"Bearer {ANY}"))


@pytest.mark.parametrize("line", [f"{ANY} team/a", f"{ANY} a b", f"{ANY} {'a' * 64}", f"{ANY} ä"])
async def test_a_line_that_names_no_tenant_is_an_error_at_the_start_that_keeps_the_token_to_itself(tmp_path, line):
    path = tmp_path / "tokens"
    path.write_text(line)
    with pytest.raises(ConfigError, match="expected lines TOKEN or TOKEN TENANT") as error:
        await GatewayAuth(TokenFile(path, line=token_and_tenant), default_tenant="default").open()
    assert ANY not in str(error.value)


async def test_a_token_of_heartbeats_is_its_whole_line(tmp_path):
    """The file of heartbeats has no tenants."""
    path = tmp_path / "tokens"
    path.write_text("a token with blanks in it\n")
    file = TokenFile(path)
    await file.open()
    assert await file.holds("a token with blanks in it")
    assert not await file.holds("a")


@pytest.mark.parametrize(("other", "usable"), [("team-b", False), ("", False), ("team-a", True)])
async def test_a_token_stands_for_one_thing(tmp_path, other, usable):
    """Of two lines that disagree the last would hold, and nobody would know."""
    path = tmp_path / "tokens"
    path.write_text(f"{OWN} team-a\n{OWN} {other}\n")
    auth = GatewayAuth(TokenFile(path, line=token_and_tenant), default_tenant="default")
    if usable:
        await auth.open()
        assert await auth.tenant(headers(f"Bearer {OWN}")) == "team-a"
    else:
        with pytest.raises(ConfigError, match="expected one line per token") as error:
            await auth.open()
        assert OWN not in str(error.value)
