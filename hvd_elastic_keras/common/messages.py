"""The form of all messages: JSON of typed values, checked on reading."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeVar

import msgspec

from hvd_elastic_keras.common.errors import ElasticError

PROTOCOL_VERSION = 1
T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A number of things, or the number of one of them. Any reader of JSON reads it exactly."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Name = Annotated[str, msgspec.Meta(max_length=500)]
"""The name of a worker, a phase or a host."""


class ProtocolError(ElasticError):
    """A message is not of the expected form or version."""


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all messages.

    Attributes:
      examples: examples in JSON, for a message that people and their programs write.
      secret: whether errors must not quote the message.
    """

    examples: ClassVar[str] = ""
    secret: ClassVar[bool] = False


def _answer_to_people(data: bytes | str, name: str, examples: str, error: str) -> str:
    received = f"{data[:120]!r} was received" if data else "No content was received"
    # msgspec's words: "Object contains unknown field `n`", "Expected `int`, got `str` - at `$.n`"
    where = error.replace(" - at `$.", " for `").replace("$.", "")
    return f"{received}, expected a {name} in JSON such as {examples}. {where.rstrip('.')}."


def encode(message: Message) -> bytes:
    """Serialises a message to JSON."""
    return msgspec.json.encode(message)


def decode(data: bytes | str, kind: type[T]) -> T:
    """Parses and checks a message.

    Raises:
      ProtocolError: the data are not JSON of that type.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError, RecursionError) as error:
        name = getattr(kind, "__name__", str(kind))
        if examples := getattr(kind, "examples", ""):
            answer = _answer_to_people(data, name, examples, str(error))
            raise ProtocolError(answer) from error
        received = "something else" if getattr(kind, "secret", False) else repr(data[:120])
        raise ProtocolError(
            f"Received {received}, expected a {name} message of protocol version "
            f"{PROTOCOL_VERSION}: {error}. Do all parts of the job run the same version?"
        ) from error
