"""How members of a round recognise each other on a socket. Pure except for the random numbers.

    holder  -> fetcher   a random number
    fetcher -> holder    a request: the bytes that it wants, another random number, and the HMAC
                         of these and the first number
    holder  -> fetcher   the HMAC of the request; then the bytes

The key is made for one sync and given to the members through the collective. A process without the
key can neither ask for a state nor give one.
"""

from __future__ import annotations

import dataclasses
import hmac
import secrets
import struct

NONCE_BYTES = 32
KEY_BYTES = 32
ASKED = struct.Struct("!QQ")
ANSWER_BYTES = 32
REQUEST_BYTES = ASKED.size + NONCE_BYTES + ANSWER_BYTES


@dataclasses.dataclass(frozen=True)
class Part:
    """A range of the state's bytes, in which the tensors follow one another."""

    start: int
    end: int


def new_key() -> str:
    """Returns a key for one sync."""
    return secrets.token_hex(KEY_BYTES)


def nonce() -> bytes:
    """Returns a random number that cannot be guessed."""
    return secrets.token_bytes(NONCE_BYTES)


def request(key: str, challenge: bytes, part: Part) -> bytes:
    """Returns a request for a part, in answer to a holder's challenge."""
    asked = ASKED.pack(part.start, part.end) + nonce()
    return asked + _proof(key, b"fetch", challenge + asked)


def requested(key: str, challenge: bytes, message: bytes) -> Part | None:
    """Returns the part that a member has asked for; None if the sender is no member."""
    asked, proof = message[:-ANSWER_BYTES], message[-ANSWER_BYTES:]
    if not hmac.compare_digest(proof, _proof(key, b"fetch", challenge + asked)):
        return None
    return Part(*ASKED.unpack(asked[: ASKED.size]))


def answer(key: str, message: bytes) -> bytes:
    """Returns the holder's answer, which shows that the holder has the key, too."""
    return _proof(key, b"serve", message)


def _proof(key: str, role: bytes, content: bytes) -> bytes:
    return hmac.digest(bytes.fromhex(key), role + content, "sha256")
