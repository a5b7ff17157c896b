"""How members of a round know each other on a socket. Pure but for the random numbers.

    holder  -> fetcher   a random number
    fetcher -> holder    a request: another random number, which bytes it wants, their HMAC with
                         the first number
    holder  -> fetcher   the HMAC of the request; then the bytes

The key is made for one sync and told to the members through the collective. Who does not have it
can neither ask for a state nor give one.
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
    """From which byte to which; tensors are laid one after the other."""

    start: int
    end: int


def new_key() -> str:
    """A key for one sync."""
    return secrets.token_hex(KEY_BYTES)


def nonce() -> bytes:
    """A number that nobody can guess."""
    return secrets.token_bytes(NONCE_BYTES)


def request(key: str, challenge: bytes, part: Part) -> bytes:
    """Asks for a part, in answer to a holder's challenge."""
    asked = ASKED.pack(part.start, part.end) + nonce()
    return asked + _proof(key, b"fetch", challenge + asked)


def requested(key: str, challenge: bytes, message: bytes) -> Part | None:
    """The part that a member has asked for; None if it is no member of the round."""
    asked, proof = message[:-ANSWER_BYTES], message[-ANSWER_BYTES:]
    if not hmac.compare_digest(proof, _proof(key, b"fetch", challenge + asked)):
        return None
    return Part(*ASKED.unpack(asked[: ASKED.size]))


def answer(key: str, message: bytes) -> bytes:
    """Shows who has made the request that its holder has the key, too."""
    return _proof(key, b"serve", message)


def _proof(key: str, role: bytes, content: bytes) -> bytes:
    return hmac.digest(bytes.fromhex(key), role + content, "sha256")
