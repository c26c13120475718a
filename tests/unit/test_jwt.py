"""Tokens that others issue: which are believed, what their roles may do, and who is said to have pushed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

from qo.core.access import Scope
from qo.core.errors import Invalid, Unavailable
from qo.server import jwts
from qo.server.jwts import Jwts
from qo.server.settings import JwtSettings, ListenSettings, ServerSettings
from qo.stores.sqlite.engine import SqliteEngine
from qo.testing.clock import ManualClock
from tests.acceptance.queens import Court, holding_court

SECRET = "a secret of more than thirty-two bytes"
RSA = generate_private_key(65537, 2048)
OTHER_RSA = generate_private_key(65537, 2048)
ED = Ed25519PrivateKey.generate()


def pem(key: Any) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def signed(key: Any = SECRET, algorithm: str = "HS256", headers: dict | None = None, **claims: Any) -> str:
    """For an hour, unless something else is said; a claim of None is left out."""
    said = {"role": "admin", "sub": "me", "exp": int(time.time()) + 3600, **claims}
    return jwt.encode({name: value for name, value in said.items() if value is not None}, key, algorithm, headers)


@contextlib.asynccontextmanager
async def guarded(settings: JwtSettings, **client: Any):
    clock = ManualClock()
    store = await SqliteEngine.open(":memory:", clock=clock.now)
    listen = ListenSettings(port=0, auth="token")
    async with holding_court(store, clock, listen=listen, jwt=settings, **client) as court:
        yield court


async def status(court: Court, token: str | None, method: str, path: str, body: Any = None) -> int:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    async with court.session.request(method, path, json=body, headers=headers) as answer:
        return answer.status


PUSH = "POST", "/api/v1/push", {"items": [{"queue": "q", "payload": 1}]}
POP = "GET", "/api/v1/pop/queue/q"
ACK: Any = "POST", "/api/v1/ack", {}
CONFIGURE = "POST", "/api/v1/configure", {"queue": "q"}
TRANSACTION: Any = "POST", "/api/v1/transaction", {"operations": []}
EXTEND: Any = "POST", "/api/v1/lease/x/extend", {}
READ = "GET", "/api/v1/resources/queues"
DELETE = "DELETE", "/api/v1/resources/queues/q"
CALLS = [PUSH, POP, ACK, CONFIGURE, TRANSACTION, EXTEND, READ, DELETE]


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("admin", CALLS),
        ("read-write", [PUSH, POP, ACK, CONFIGURE, TRANSACTION, EXTEND, READ]),
        ("read-only", [READ]),
        ("write-only", [PUSH]),
    ],
)
async def test_roles(role, allowed):
    async with guarded(JwtSettings(secret=SECRET)) as court:
        for call in CALLS:
            answered = await status(court, signed(role=role), *call)
            assert (answered != 403) == (call in allowed), (role, call, answered)
            assert answered < 500


async def test_several_roles_add_up():
    async with guarded(JwtSettings(secret=SECRET)) as court:
        token = signed(role=None, roles=["write-only", "read-only", "nonsense"])
        assert await status(court, token, *PUSH) == 201
        assert await status(court, token, *READ) == 200
        assert await status(court, token, *POP) == 403
        assert await status(court, signed(role="nonsense"), *READ) == 403


async def test_a_token_that_never_ends_is_refused_unless_a_setting_allows_it():
    async with guarded(JwtSettings(secret=SECRET)) as court:
        assert await status(court, signed(exp=None), *READ) == 401
        assert await status(court, signed(), *READ) == 200
    async with guarded(JwtSettings(secret=SECRET, require_exp=False)) as court:
        assert await status(court, signed(exp=None), *READ) == 200
        assert await status(court, signed(exp=int(time.time()) - 100), *READ) == 401, "one that has ended is over"


async def test_without_a_good_token_nobody_comes_in():
    async with guarded(JwtSettings(secret=SECRET)) as court:
        assert await status(court, None, *READ) == 401
        assert await status(court, "nonsense", *READ) == 401
        assert await status(court, signed("another secret of thirty-two bytes and more"), *READ) == 401
        assert await status(court, signed(exp=int(time.time()) - 100), *READ) == 401
        assert await status(court, signed(exp=int(time.time()) - 10), *READ) == 200, "within the leeway"
        assert await status(court, signed(nbf=int(time.time()) + 100), *READ) == 401
        assert await status(court, signed(sub="x" * 300), *READ) == 401
        unsigned = jwt.encode({"role": "admin", "exp": int(time.time()) + 3600}, "", "none")
        assert await status(court, unsigned, *READ) == 401
        for open_path in ("/health", "/metrics", "/metrics/prometheus", "/livez"):
            assert await status(court, None, "GET", open_path) == 200


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (ED, "EdDSA")])
async def test_public_keys(key, algorithm, tmp_path):
    file = tmp_path / "key.pem"
    file.write_text(pem(key))
    for said in (pem(key), str(file)):
        async with guarded(JwtSettings(public_key=said)) as court:
            assert await status(court, signed(key, algorithm), *READ) == 200
            assert await status(court, signed(OTHER_RSA, "RS256"), *READ) == 401


async def test_a_public_key_is_not_a_secret():
    """Whoever knows the public key must not be able to sign with it."""
    async with guarded(JwtSettings(public_key=pem(RSA))) as court:
        header = jwt.utils.base64url_encode(b'{"alg":"HS256","typ":"JWT"}')
        claims = jwt.utils.base64url_encode(b'{"role":"admin","exp":%d}' % (time.time() + 3600))
        hmac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
        mac = hmac.sign(header + b"." + claims, pem(RSA).encode())
        forged = b".".join((header, claims, jwt.utils.base64url_encode(mac))).decode()
        assert await status(court, forged, *READ) == 401


def key_set(**keys: Any) -> str:
    listed = []
    for id, key in keys.items():
        algorithm = OKPAlgorithm if isinstance(key, Ed25519PrivateKey) else RSAAlgorithm
        listed.append({**json.loads(algorithm.to_jwk(key.public_key())), "kid": id, "use": "sig"})
    return json.dumps({"keys": [*listed, {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"}]})


async def test_a_set_of_keys_is_read_again_when_a_key_is_new(tmp_path, monkeypatch):
    file = tmp_path / "keys.json"
    file.write_text(key_set(one=RSA, two=ED))
    async with guarded(JwtSettings(jwks=str(file))) as court:
        assert await status(court, signed(RSA, "RS256", {"kid": "one"}), *READ) == 200
        assert await status(court, signed(ED, "EdDSA", {"kid": "two"}), *READ) == 200
        assert await status(court, signed(ED, "EdDSA", {"kid": "one"}), *READ) == 401
        assert await status(court, signed("secret" * 8, "HS256", {"kid": "secret"}), *READ) == 401
        fresh = signed(OTHER_RSA, "RS256", {"kid": "three"})
        file.write_text(key_set(three=OTHER_RSA))
        assert await status(court, fresh, *READ) == 401, "at most once a minute"
        monkeypatch.setattr(jwts, "REFRESH_SECONDS", 0.0)
        assert await status(court, fresh, *READ) == 200
        file.unlink()
        assert await status(court, fresh, *READ) == 200, "the keys it has are good while it cannot read"


async def test_a_set_of_keys_from_an_address():
    answers: list[tuple[int, bytes, dict[str, str]]] = [(200, key_set(one=RSA).encode(), {})]

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body, headers = answers[0]
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Keys)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/keys"
    try:
        assert (await Jwts(JwtSettings(jwks=url)).check(signed(RSA, "RS256", {"kid": "one"}))).subject == "me"
        redirect = 302, b"", {"location": "/elsewhere"}
        for code, body, headers in (redirect, (200, b"x" * (jwts.SET_BYTES + 1), {}), (200, b"no", {})):
            answers[0] = code, body, headers
            with pytest.raises(Unavailable):
                await Jwts(JwtSettings(jwks=url)).check(signed(RSA, "RS256", {"kid": "one"}))
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()


async def test_issuer_and_audience():
    settings = JwtSettings(secret=SECRET, issuer="us", audience="qo")
    async with guarded(settings) as court:
        assert await status(court, signed(iss="us", aud="qo"), *READ) == 200
        assert await status(court, signed(iss="us", aud=["other", "qo"]), *READ) == 200
        for claims in ({}, {"iss": "us"}, {"iss": "them", "aud": "qo"}, {"iss": "us", "aud": "other"}):
            assert await status(court, signed(**claims), *READ) == 401


async def test_who_pushed_is_stamped_and_cannot_be_forged():
    async with guarded(JwtSettings(secret=SECRET), bearer_token=signed(sub="producer-7")) as court:
        await court.queen.queue("q").push([{"data": 1, "producerSub": "forged"}])
        await court.queen.transaction().queue("q").push([{"data": 2}]).commit()
        headers = {"authorization": f"Bearer {signed(sub='own')}"}
        await court.ask("POST", "/v1/queues/q/messages", {"payload": 3, "key": "Default"}, headers=headers)
        forged = {"payload": 4, "headers": {"qo-producer": "forged"}}
        code, answer = await court.ask("POST", "/v1/queues/q/messages", forged, headers=headers)
        assert code == 400
        assert answer["field"] == "headers"
        messages = await court.queen.queue("q").batch(10).wait(False).pop()
        assert [each["producerSub"] for each in messages] == ["producer-7", "producer-7", "own"]


async def test_our_own_tokens_are_taken_beside_theirs():
    import qo

    async with guarded(JwtSettings(secret=SECRET)) as court:
        tokens = qo.Client(court.server.context.broker).tokens
        _, text = await tokens.create("ci", [Scope.PRODUCE, Scope.CONSUME], prefixes=["q"])
        headers = {"authorization": f"Bearer {text}"}
        assert (await court.ask(*PUSH, headers=headers))[0] == 201
        _, answer = await court.ask(*POP, headers=headers)
        assert answer["messages"][0]["producerSub"] == "ci"
        elsewhere = {"items": [{"queue": "other", "payload": 1}]}
        assert (await court.ask("POST", "/api/v1/push", elsewhere, headers=headers))[0] == 403
        foreign = {"transactionId": "t", "partitionId": "WyJvdGhlciIsIkRlZmF1bHQiXQ"}
        assert (await court.ask("POST", "/api/v1/ack", foreign, headers=headers))[0] == 403
        _, reader = await tokens.create("eyes", [Scope.READ])
        headers = {"authorization": f"Bearer {reader}"}
        assert (await court.ask("GET", "/v1/queues", headers=headers))[0] == 200
        assert (await court.ask("POST", "/v1/queues/q/claim", {}, headers=headers))[0] == 403


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"secret": "short"}, "jwt.secret"),
        ({"secret": SECRET, "jwks": "x"}, "jwt.secret"),
        ({"issuer": "us"}, "jwt.issuer"),
        ({"secret": SECRET, "leeway_seconds": -1}, "jwt.leeway_seconds"),
    ],
)
def test_bad_settings_are_named(settings, field):
    with pytest.raises(Invalid) as refused:
        JwtSettings(**settings)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"public_key": "/no/such/file"}, "cannot be read"),
        ({"public_key": "-----BEGIN nonsense"}, "not a public key"),
        ({"jwks": "http://example.com/keys"}, "https"),
    ],
)
def test_keys_that_cannot_be_used_are_named(settings, says):
    with pytest.raises(Invalid, match=says):
        Jwts(JwtSettings(**settings))


def test_tokens_of_others_need_authentication_to_be_on():
    with pytest.raises(Invalid, match=r"server\.auth"):
        ServerSettings(store="", jwt=JwtSettings(secret=SECRET))


async def test_pages_of_allowed_origins_may_call():
    clock = ManualClock()
    store = await SqliteEngine.open(":memory:", clock=clock.now)
    listen = ListenSettings(port=0, cors_origins="https://app.example, https://other.example")
    async with holding_court(store, clock, listen=listen) as court:
        good, bad = {"origin": "https://app.example"}, {"origin": "https://evil.example"}
        async with court.session.options("/api/v1/push", headers=good) as answer:
            assert answer.status == 204
            assert answer.headers["access-control-allow-origin"] == "https://app.example"
            assert "authorization" in answer.headers["access-control-allow-headers"]
        async with court.session.options("/api/v1/push", headers=bad) as answer:
            assert answer.status == 405
        async with court.session.get("/api/v1/status", headers=good) as answer:
            assert answer.status == 200
            assert answer.headers["access-control-allow-origin"] == "https://app.example"
        async with court.session.get("/api/v1/status", headers=bad) as answer:
            assert answer.status == 403
            assert "access-control-allow-origin" not in answer.headers


async def test_metrics_may_be_kept_from_strangers():
    from dataclasses import replace

    from qo.server.settings import MetricSettings

    async with guarded(JwtSettings(secret=SECRET)) as court:
        court.server.context.settings = replace(court.server.context.settings, metrics=MetricSettings(public=False))
        assert await status(court, None, "GET", "/metrics") == 401
        assert await status(court, signed(role="read-only"), "GET", "/metrics") == 200
        assert isinstance(court.session, aiohttp.ClientSession)
