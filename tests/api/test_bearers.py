"""Callers who come with a token of an identity provider, whose keys are fetched from a real address."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import jwt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runward.core.errors import DefinitionError
from runward.engine import bearers
from runward.engine.bearers import MAX_LENGTH
from runward.engine.callers import Permission
from runward.settings import Settings
from runward.wiring import bearers_of
from tests.api.desk import REFUND, asked_id, desk
from tests.api.house import House, house, until
from tests.api.test_callers import key
from tests.api.test_inputs import refused
from tests.support.identity import (
    AUDIENCE,
    ISSUER,
    base64url,
    claims,
    jwks,
    public_jwk,
    public_spellings,
    raw,
    signed,
    with_hmac,
)
from tests.tools.web import Web, answer, floods, redirect, silence

KEYS = "/keys"
PROVIDER = {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_tenant_claim": "tenant", "jwt_leeway_seconds": 30}


def provided(web: Web, **more: Any) -> Settings:
    """The settings of a service that takes this provider's tokens; None takes one away."""
    given = {**PROVIDER, "jwt_jwks_url": web.url + KEYS, **more}
    return Settings(**{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Staffed:
    """A service that takes the tokens of a provider, and that provider."""

    house: House
    web: Web

    @property
    def now(self) -> int:
        return self.house.service.services.time.now()

    def bearer(self, key: str = "rsa", *, alg: str = "RS256", header: Mapping[str, Any] = {}, **more: Any) -> dict[str, str]:
        """The headers of somebody with a token."""
        return headers(signed(claims(self.now, **more), key, alg=alg, **header))

    async def status(self, sent: dict[str, str] | str) -> int:
        answered = await self.house.http.get("/runs", headers=headers(sent) if isinstance(sent, str) else sent)
        if answered.status_code == 401:
            assert answered.json()["code"] == "unauthenticated"
        return answered.status_code


def headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def staffed(*keys: str | dict[str, Any], worker: bool = False, **more: Any) -> AsyncIterator[Staffed]:
    async with Web() as web:
        web.answers[KEYS] = jwks(*keys or ("rsa", "ec"))
        async with house(worker=worker, bearers=lambda services: bearers_of(provided(web, **more), services)) as made:
            yield Staffed(made, web)


@pytest.fixture
async def staff() -> AsyncIterator[Staffed]:
    async with staffed() as made:
        yield made


async def test_a_token_of_the_provider_opens_what_its_claims_say(staff: Staffed) -> None:
    ann, bob, eve = staff.bearer(), staff.bearer("ec", alg="ES256", sub="bob"), staff.bearer(tenant="globex")
    http = staff.house.http
    created = await http.post("/runs", json={"agent": "support", "input": "hi", "run_id": "r"}, headers=ann)
    assert created.status_code == 202
    assert created.json()["scope"] == {"tenant": "acme", "user": "ann", "namespace": None}
    assert (await http.get("/runs/r", headers=ann)).status_code == 200
    for other in (bob, eve):
        assert refused(await http.get("/runs/r", headers=other)) == (404, "not_found")
    assert refused(await http.get("/approvals", headers=ann)) == (403, "not_permitted")
    assert refused(await http.get("/runs?tenant=globex", headers=ann)) == (403, "not_permitted")
    inbox = await http.post("/runs/r/cancel", json={}, headers=ann)
    assert inbox.status_code == 202
    (told,) = (await http.get("/runs/r/inbox", headers=ann)).json()["data"]
    assert told["principal"]["by"] == "jwt:ann"
    assert len(staff.web.requests) == 1


async def test_keys_and_access_tokens_work_beside_it(staff: Staffed) -> None:
    assert await staff.status(await key(staff.house)) == 200
    run = (await staff.house.http.post("/runs", json={"agent": "support", "input": "hi"}, headers=staff.bearer())).json()
    granted = await staff.house.http.post(f"/runs/{run['run_id']}/access-tokens", json={"allow": ["cancel"]}, headers=staff.bearer())
    assert granted.status_code == 201
    cancelled = await staff.house.http.post(f"/runs/{run['run_id']}/cancel", headers=headers(granted.json()["token"]))
    assert cancelled.status_code == 202


async def test_where_there_is_a_provider_nobody_comes_in_unknown(staff: Staffed) -> None:
    """Also as long as no key was ever made, and on this machine."""
    assert [await staff.status({}), await staff.status("rw_0123456789abcdef_" + "A" * 43), await staff.status("a.b.c")] == [401] * 3


def wrong(now: int) -> dict[str, str]:
    """Tokens that are not good, by what is wrong with them."""
    good = claims(now)
    seconds = now // 1000
    told: dict[str, dict[str, Any]] = {
        "nobody's": claims(now, iss=None),
        "somebody else's": claims(now, iss="https://evil.example"),
        "of an issuer that looks alike": claims(now, iss=ISSUER + "/"),
        "of two issuers": claims(now, iss=[ISSUER]),
        "for nobody": claims(now, aud=None),
        "for another service": claims(now, aud="billing"),
        "for others": claims(now, aud=["billing", "mail"]),
        "for a part of the name": claims(now, aud="run"),
        "for a map": claims(now, aud={AUDIENCE: 1}),
        "about nobody": claims(now, sub=None),
        "about a number": claims(now, sub=7),
        "about an empty name": claims(now, sub=""),
        "about a name that controls a terminal": claims(now, sub="ann\x1b[2J"),
        "about a very long name": claims(now, sub="a" * 256),
        "for ever": claims(now, exp=None),
        "over": claims(now, exp=seconds - 31),
        "over long ago": claims(now, exp=0),
        "until a text": claims(now, exp=str(seconds + 600)),
        "until true": claims(now, exp=True),
        "until the end of numbers": claims(now, exp=2**60),
        "until before time began": claims(now, exp=-1),
        "not yet": claims(now, nbf=seconds + 60),
        "made in the future": claims(now, iat=seconds + 60),
        "begun at a text": claims(now, nbf="now"),
    }
    public = public_spellings("rsa")
    return {
        **{name: signed(each) for name, each in told.items()},
        "until infinity": until_what(now, "Infinity"),
        "until no number": until_what(now, "NaN"),
        "signed by another key": signed(good, "rsa-of-somebody", kid="rsa"),
        "signed by a key of another kind": signed(good, "ec", alg="ES256", kid="rsa"),
        "of a key nobody knows": signed(good, "rsa-of-somebody"),
        "of no key": signed(good, kid=None),
        "of an empty key": signed(good, kid=""),
        "with another algorithm of the same key": signed(good, alg="RS512"),
        "with padding that its key is not for": signed(good, alg="PS256"),
        "none": raw({"alg": "none", "kid": "rsa"}, good),
        "None": raw({"alg": "None", "kid": "rsa"}, good),
        "no algorithm": raw({"kid": "rsa"}, good, b"x"),
        "an algorithm that is a list": raw({"alg": ["RS256"], "kid": "rsa"}, good, b"x"),
        "a key that is a list": raw({"alg": "RS256", "kid": ["rsa"]}, good, b"x"),
        "an empty signature": raw({"alg": "RS256", "kid": "rsa"}, good),
        "its own key in the header": signed(good, "rsa-of-somebody", kid="rsa", jwk=public_jwk("rsa-of-somebody")),
        "its own address in the header": signed(good, "rsa-of-somebody", kid="rsa", jku="https://evil.example/keys"),
        "what nobody understands": signed(good, crit=["exp2"], exp2=1),
        "not encoded": raw({"alg": "RS256", "kid": "rsa", "b64": False, "crit": ["b64"]}, good, b"x"),
        **{
            f"an HMAC with the public key as {name}": with_hmac({"alg": "HS256", "kid": "rsa"}, good, each) for name, each in public.items()
        },
        **{f"RS256, but an HMAC with {name}": with_hmac({"alg": "RS256", "kid": "rsa"}, good, each) for name, each in public.items()},
        "another payload": moved(signed(good), 1, base64url(json.dumps(claims(now, tenant="globex")).encode())),
        "another header": moved(signed(good), 0, base64url(b'{"alg":"RS256","kid":"ec"}')),
        "claims that are a list": signed(b"[]"),
        "claims that are no JSON": signed(b"{"),
        "deep claims": signed(b"[" * 5_000),
        "a deep header": f"{base64url(b'[' * 5_000)}.e30.AAAA",
        "five parts": signed(good) + ".e30.e30",
        "four parts": signed(good) + ".e30",
        "too long": signed(claims(now, more="x" * MAX_LENGTH)),
    }


def until_what(now: int, expires: str) -> str:
    """A token that ends at what no library would write."""
    return signed(json.dumps(claims(now, exp=None))[:-1].encode() + f', "exp": {expires}}}'.encode())


def moved(token: str, place: int, part: str) -> str:
    parts = token.split(".")
    return ".".join([*parts[:place], part, *parts[place + 1 :]])


async def test_what_is_wrong_with_a_token_is_not_told_and_it_opens_nothing(staff: Staffed) -> None:
    assert await staff.status(staff.bearer()) == 200
    details = set()
    for what, token in wrong(staff.now).items():
        answered = await staff.house.http.get("/runs", headers=headers(token))
        assert refused(answered) == (401, "unauthenticated"), what
        assert token not in answered.text
        details.add(answered.json()["detail"])
    assert len(details) <= 2  # one for tokens, and one for what is none by its dots
    assert await staff.status(staff.bearer()) == 200
    assert len(staff.web.requests) == 1, "no header leads anywhere, and no unknown key is worth a fetch so soon"
    assert staff.house.heard.problems == []


async def test_what_is_at_the_edge_is_good(staff: Staffed) -> None:
    """So that what is refused above is refused for what is wrong with it."""
    assert await staff.status(until_what(staff.now, f"{staff.now // 1000 + 60}")) == 200
    assert await staff.status(until_what(staff.now, f"{staff.now // 1000 + 60}.5")) == 200
    assert await staff.status(staff.bearer(aud=["billing", AUDIENCE], exp=staff.now // 1000 - 20)) == 200
    assert await staff.status(staff.bearer(nbf=staff.now // 1000 + 20, iat=staff.now // 1000 + 20)) == 200


async def test_a_signature_is_verified_once_and_everything_else_whenever_a_token_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[str] = []
    decode = jwt.decode

    def counted(text: str, *given: Any, **named: Any) -> Any:
        verified.append(text)
        return decode(text, *given, **named)

    monkeypatch.setattr(jwt, "decode", counted)
    monkeypatch.setattr(bearers, "REMEMBERED", 2)
    async with staffed(jwt_leeway_seconds=0) as staff:
        found = staff.house.door.bearers
        assert found is not None
        short = staff.bearer(exp=staff.now // 1000 + 2)
        others = [staff.bearer("ec", alg="ES256", sub=name) for name in ("bob", "eve")]
        assert [await staff.status(short) for _ in range(20)] == [200] * 20
        assert len(verified) == 1
        assert [await staff.status(other) for other in (*others, *others)] == [200] * 4
        assert (len(verified), len(found._good)) == (3, 2)
        assert await staff.status(short) == 200
        end = staff.now + 2_000
        await until(lambda: staff.now > end)
        assert await staff.status(short) == 401, "its time is over, though it was signed well"
        assert len(verified) == 4
        staff.web.answers[KEYS] = jwks("rsa")
        found._keys._next_at = 0
        await found._keys.fetch()
        assert await staff.status(others[1]) == 401, "its key was withdrawn, though it was signed well"
        bad = signed(claims(staff.now), "rsa-of-somebody", kid="rsa")
        assert [await staff.status(bad) for _ in range(3)] == [401] * 3
        assert verified[-3:] == [bad] * 3, "of what is not good nothing is remembered"


async def test_claims_that_do_not_say_who_comes_open_nothing(staff: Staffed) -> None:
    for more in ({"tenant": None}, {"tenant": ""}, {"tenant": ["acme"]}, {"tenant": "a\nb"}, {"tenant": "x" * 129}, {"tenant": 7}):
        answered = await staff.house.http.get("/runs", headers=staff.bearer(**more))
        assert refused(answered) == (403, "not_permitted")
        assert "'tenant'" in answered.json()["detail"]


async def test_nobody_is_local_or_an_operator_by_a_token(staff: Staffed) -> None:
    for name in ("local", "default"):
        told = staff.bearer(sub=name, scope=" ".join(Permission), tenant="default")
        assert refused(await staff.house.http.post("/ops/prune", json={"keys_before": "2026-01-01T00:00:00Z"}, headers=told)) == (
            403,
            "not_permitted",
        )


Owner = tuple[str | None, str | None, str | None]
BOTH = {"runs:read", "runs:write"}
TEAM = "https://acme.example/team"
MAPPED: dict[str, tuple[dict[str, Any], dict[str, Any], Owner, set[str]]] = {
    "the usual claims": ({}, {}, ("acme", "ann", None), BOTH),
    "one tenant for all": ({"jwt_tenant": "acme", "jwt_tenant_claim": None}, {"tenant": "globex"}, ("acme", "ann", None), BOTH),
    "the whole tenant": ({"jwt_user_claim": "none"}, {}, ("acme", None, None), BOTH),
    "another claim for the user": ({"jwt_user_claim": "email"}, {"email": "ann@acme.example"}, ("acme", "ann@acme.example", None), BOTH),
    "a namespace": ({"jwt_namespace_claim": TEAM}, {TEAM: "red"}, ("acme", "ann", "red"), BOTH),
    "permissions as a list": (
        {"jwt_permissions_claim": "permissions"},
        {"permissions": ["ops", "x", 7, None, ["runs:write"]]},
        ("acme", "ann", None),
        {"ops"},
    ),
    "no permissions": ({}, {"scope": None}, ("acme", "ann", None), set()),
    "permissions that are a map": ({}, {"scope": {"ops": True}}, ("acme", "ann", None), set()),
    "roles": (
        {"jwt_permissions_claim": "roles", "jwt_roles": "agent=runs:read+runs:write, a lead=approvals:decide,ops=runs:read"},
        {"roles": ["a lead", "agent", "ops", "boss"]},
        ("acme", "ann", None),
        {"runs:read", "runs:write", "approvals:decide"},
    ),
}


@pytest.mark.parametrize(("given", "told", "scope", "permissions"), MAPPED.values(), ids=MAPPED.keys())
async def test_claims_become_a_caller_as_settings_say(
    given: dict[str, Any], told: dict[str, Any], scope: Owner, permissions: set[str]
) -> None:
    async with staffed(**given) as staff:
        assert staff.house.door.bearers is not None
        caller = await staff.house.door.bearers.caller(signed(claims(staff.now, **told)))
        assert (caller.scope.tenant, caller.scope.user, caller.scope.namespace) == scope
        assert caller.permissions == permissions
        assert not caller.operator


@pytest.mark.parametrize(
    ("given", "absent"), [({"jwt_user_claim": "email"}, {}), ({"jwt_namespace_claim": "team"}, {}), ({}, {"sub": "\x7e" * 200})]
)
async def test_a_claim_that_is_missing_widens_nothing(given: dict[str, Any], absent: dict[str, Any]) -> None:
    async with staffed(**given) as staff:
        assert await staff.status(staff.bearer(**absent)) == 403


async def test_other_algorithms_are_taken_where_they_are_set() -> None:
    async with staffed("ed", public_jwk("rsa", alg="PS256"), "rsa2", jwt_algorithms="EdDSA,PS256") as staff:
        assert await staff.status(staff.bearer("ed", alg="EdDSA")) == 200
        assert await staff.status(staff.bearer(alg="PS256")) == 200
        assert await staff.status(staff.bearer("rsa2")) == 401


async def test_requests_do_not_wait_for_a_provider_that_hangs(staff: Staffed) -> None:
    assert await staff.status(staff.bearer()) == 200
    staff.web.answers[KEYS] = silence
    bearers = staff.house.door.bearers
    assert bearers is not None
    bearers._keys._fetched_at -= 1_000
    bearers._keys._next_at = 0
    async with asyncio.timeout(2):
        assert [await staff.status(staff.bearer()) for _ in range(20)] == [200] * 20
        await until(lambda: len(staff.web.requests) == 2)
        assert await staff.status(staff.bearer()) == 200


async def test_before_the_first_keys_came_callers_are_asked_to_come_again(staff: Staffed) -> None:
    staff.web.answers[KEYS] = answer(500)
    answered = await staff.house.http.get("/runs", headers=staff.bearer())
    assert refused(answered) == (503, "unavailable")
    assert int(answered.headers["retry-after"]) >= 1
    assert await staff.status(signed(claims(staff.now), alg="RS512")) == 401, "what is never good needs no key to be known"
    assert await staff.status(await key(staff.house)) == 200
    staff.web.answers[KEYS] = jwks("rsa")
    bearers = staff.house.door.bearers
    assert bearers is not None
    bearers._keys._next_at = 0
    assert await staff.status(staff.bearer()) == 200
    assert staff.house.heard.problems[0][0] == "identity_keys_failed"


async def test_a_set_of_keys_that_is_too_large_or_elsewhere_is_not_taken(staff: Staffed) -> None:
    async with Web() as elsewhere:
        elsewhere.answers[KEYS] = jwks("rsa")
        flood = floods(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", b" " * 65_536)
        for given in (redirect(302, elsewhere.url + KEYS), flood):
            staff.web.answers[KEYS] = given
            bearers = staff.house.door.bearers
            assert bearers is not None
            bearers._keys._next_at = 0
            assert await staff.status(staff.bearer()) == 503
        assert elsewhere.requests == []


async def test_a_token_handed_on_ends_with_the_one_it_was_made_with() -> None:
    async with Web() as web, desk(bearers=lambda services: bearers_of(provided(web), services)) as made:
        web.answers[KEYS] = jwks("rsa")
        now = made.house.service.services.time.now
        told = claims(now(), exp=now() // 1000 + 2, scope=" ".join(Permission))
        ann = headers(signed(told))
        run = await made.waiting(REFUND, headers=ann)
        issued = await made.http.post(f"/approvals/{asked_id(run)}/access-tokens", json={"ttl_seconds": 3_600}, headers=ann)
        assert issued.status_code == 201
        link = issued.json()["url"]
        assert (await made.http.get(link)).status_code == 200
        await until(lambda: now() > told["exp"] * 1000)
        assert refused(await made.http.get(link)) == (401, "unauthenticated")


async def test_what_was_handed_on_ends_with_the_provider(staff: Staffed) -> None:
    run = (await staff.house.http.post("/runs", json={"agent": "support", "input": "hi"}, headers=staff.bearer())).json()
    granted = await staff.house.http.post(f"/runs/{run['run_id']}/access-tokens", json={"allow": ["cancel"]}, headers=staff.bearer())
    token, cancel = headers(granted.json()["token"]), f"/runs/{run['run_id']}/cancel"
    authenticator = staff.house.app.state.authenticator
    authenticator._bearers = None
    assert refused(await staff.house.http.post(cancel, headers=token)) == (401, "unauthenticated")
    authenticator._bearers = staff.house.door.bearers
    assert (await staff.house.http.post(cancel, headers=token)).status_code == 202


async def test_a_provider_s_token_is_not_taken_from_an_address(staff: Staffed) -> None:
    run = (await staff.house.http.post("/runs", json={"agent": "support", "input": "hi"}, headers=staff.bearer())).json()
    token = signed(claims(staff.now))
    answered = await staff.house.http.get(f"/runs/{run['run_id']}/events", params={"token": token})
    assert (answered.status_code, token in answered.text) == (401, False)


SET_WRONGLY: dict[str, dict[str, Any]] = {
    "RUNWARD_JWT_ISSUER": {"jwt_issuer": None},
    "RUNWARD_JWT_AUDIENCE": {"jwt_audience": None},
    "RUNWARD_JWT_JWKS_URL": {"jwt_jwks_url": None},
    "RUNWARD_JWT_JWKS_URL has to be https": {"jwt_jwks_url": "http://id.example/keys"},
    "RUNWARD_JWT_JWKS_URL cannot be called": {"jwt_jwks_url": "file:///etc/passwd"},
    "RUNWARD_JWT_TENANT_CLAIM": {"jwt_tenant_claim": None},
    "not both": {"jwt_tenant": "acme"},
    "RUNWARD_JWT_TENANT is": {"jwt_tenant": "a\nb", "jwt_tenant_claim": None},
    "RUNWARD_JWT_ALGORITHMS": {"jwt_algorithms": "RS256,HS256"},
    "other algorithms": {"jwt_algorithms": "none"},
    "RUNWARD_JWT_ROLES": {"jwt_roles": "agent=runs:everything"},
    "'agent'": {"jwt_roles": "agent"},
}


@pytest.mark.parametrize(("says", "given"), SET_WRONGLY.items())
async def test_a_provider_that_is_set_halfway_keeps_a_process_from_starting(staff: Staffed, says: str, given: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=says):
        bearers_of(provided(staff.web, **given), staff.house.service.services)


def test_without_a_provider_nothing_is_loaded(tmp_path: Any) -> None:
    assert bearers_of(Settings(), None) is None  # type: ignore[arg-type]


TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=60)
JSONS = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
HEADER = ("alg", "kid", "typ", "crit", "b64", "jwk", "jku", "x5c")
HEADERS = st.fixed_dictionaries({}, optional=dict.fromkeys(HEADER, JSONS | st.sampled_from(["RS256", "rsa", "b64", "none"])))
CLAIMS = st.fixed_dictionaries({}, optional=dict.fromkeys(("iss", "aud", "sub", "exp", "nbf", "iat", "jti", "tenant", "scope"), JSONS))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(header=HEADERS, told=CLAIMS, junk=TEXT, data=st.binary(max_size=40))
async def test_no_token_makes_a_check_raise(staff: Staffed, header: dict[str, Any], told: dict[str, Any], junk: str, data: bytes) -> None:
    """Neither what anybody may send, nor what a provider may sign."""
    good = claims(staff.now)
    sent = [
        raw(header, told, data),
        raw({"alg": "RS256", "kid": "rsa", **header}, data, data),
        f"{junk.replace('.', '')}.{base64url(data)}.{base64url(data)}",
        moved(signed(good), 2, base64url(data)),
        signed(json.dumps({**good, **told}).encode()),
        signed(data),
    ]
    for token in sent:
        answered: httpx.Response = await staff.house.http.get("/runs", headers=headers(token))
        assert answered.status_code in (200, 401, 403), token
        if answered.status_code == 200:
            assert token == sent[4]
    assert staff.house.heard.problems == []
