"""An identity provider for tests: it has keys, publishes them at a real address, and signs whatever a test wants signed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.tools.web import answer

ISSUER = "https://id.example/realms/staff"
AUDIENCE = "runward"


@cache
def private_key(name: str) -> PrivateKeyTypes:
    """A key of its own for every name: `rsa…`, `weak…` (1,024 bits), `ec…`, `p384…`, `ed…`."""
    if name.startswith("ec"):
        return ec.generate_private_key(ec.SECP256R1())
    if name.startswith("p384"):
        return ec.generate_private_key(ec.SECP384R1())
    if name.startswith("ed"):
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(public_exponent=65537, key_size=1024 if name.startswith("weak") else 2048)


_KINDS = {"ec": ECAlgorithm, "p384": ECAlgorithm, "ed": OKPAlgorithm, "rsa": RSAAlgorithm, "weak": RSAAlgorithm}


def public_jwk(name: str, **more: Any) -> dict[str, Any]:
    """The public half of a key as a provider lists it, with the key's name as its `kid`."""
    key: Any = private_key(name)
    kind: Any = next(kind for start, kind in _KINDS.items() if name.startswith(start))
    return {**kind.to_jwk(key.public_key(), as_dict=True), "kid": name, "use": "sig", **more}


def jwks(*keys: str | dict[str, Any]) -> bytes:
    """What a provider answers that has these keys."""
    return answer(body={"keys": [public_jwk(key) if isinstance(key, str) else key for key in keys]})


def claims(now: int, **more: Any) -> dict[str, Any]:
    """Claims of a good token, at a time in milliseconds; None takes one away."""
    seconds = now // 1000
    good = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ann",
        "iat": seconds,
        "exp": seconds + 600,
        "tenant": "acme",
        "scope": "openid runs:read runs:write",
    }
    return {name: value for name, value in {**good, **more}.items() if value is not None}


def signed(told: dict[str, Any] | bytes, key: str = "rsa", *, alg: str = "RS256", **header: Any) -> str:
    """A token of these claims, be they what they may. A part of the header that is None is left out."""
    payload = told if isinstance(told, bytes) else json.dumps(told).encode()
    named = {name: value for name, value in {"kid": key, **header}.items() if value is not None}
    return jwt.PyJWS().encode(payload, private_key(key), algorithm=alg, headers=named)  # type: ignore[arg-type]


def raw(header: dict[str, Any], told: dict[str, Any] | bytes, signature: bytes = b"") -> str:
    """A token put together by hand."""
    payload = told if isinstance(told, bytes) else json.dumps(told).encode()
    return ".".join(base64url(part) for part in (json.dumps(header).encode(), payload, signature))


def with_hmac(header: dict[str, Any], told: dict[str, Any], secret: bytes) -> str:
    """A token that is signed with what is public."""
    unsigned = raw(header, told).rpartition(".")[0]
    return f"{unsigned}.{base64url(hmac.digest(secret, unsigned.encode(), hashlib.sha256))}"


def public_spellings(name: str) -> dict[str, bytes]:
    """A public key in every form that somebody may take for a shared secret."""
    key: Any = private_key(name)
    public = key.public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return {
        "PEM": pem,
        "PEM without its end": pem.strip(),
        "DER": public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        "JWK": json.dumps(public_jwk(name)).encode(),
        "nothing": b"",
    }


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Provider:
    """Answers every request with `answer`."""

    def __init__(self) -> None:
        self.answer = jwks("rsa")
        self.url = ""


@contextmanager
def provider() -> Iterator[Provider]:
    """One that other processes can reach, at an address of this machine."""
    told = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(told.answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{server.server_port}/keys"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
