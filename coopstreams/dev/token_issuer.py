"""Tokens for OAUTHBEARER on a broker of development: signed by a key of its own. Needs
`cryptography`.

Shape: JSON Web Tokens, signed with ES256; the broker reads the public key from a JWKS
file.
Source: RFC 7515 (JWS), RFC 7517 (JWK), RFC 7518 section 3.4 (ES256).
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode

import orjson
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

AUDIENCE = "kafka"
ISSUER = "coopstreams-dev"
_KEY_ID = "dev"


def new_key() -> bytes:
    """Return a new private key. Shape: PEM, PKCS #8 without a password."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def key_set(key: bytes) -> bytes:
    """Return the JWKS document with the public half of a key."""
    numbers = _load(key).public_key().public_numbers()
    public = {
        "x": _base64(numbers.x.to_bytes(32, "big")),
        "y": _base64(numbers.y.to_bytes(32, "big")),
    }
    return orjson.dumps(
        {
            "keys": [
                {
                    "kty": "EC",
                    "crv": "P-256",
                    "use": "sig",
                    "alg": "ES256",
                    "kid": _KEY_ID,
                    **public,
                }
            ]
        }
    )


def signed(
    key: bytes,
    subject: str,
    lifetime_s: float,
) -> str:
    """Return a token for the user `subject` that is valid from now on for `lifetime_s`;
    a negative one has expired.
    """
    now = time.time()
    claims = {
        "sub": subject,
        "iss": ISSUER,
        "aud": AUDIENCE,
        "iat": int(now),
        "exp": int(now + lifetime_s),
    }
    head = orjson.dumps({"alg": "ES256", "typ": "JWT", "kid": _KEY_ID})
    text = f"{_base64(head)}.{_base64(orjson.dumps(claims))}"
    r, s = decode_dss_signature(
        _load(key).sign(text.encode(), ec.ECDSA(hashes.SHA256()))
    )
    return f"{text}.{_base64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _load(key: bytes) -> ec.EllipticCurvePrivateKey:
    loaded = serialization.load_pem_private_key(key, None)
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    return loaded


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
