"""The options that a job gives to all its trainings, as they travel to the workers."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings.options import NOTHING, Asked, RunOptions

COMMAND_LINE = "command_line"
"""Name under which the JSON of `JobOptions` holds the options of the command line."""
SEED = "job_seed"
"""Name under which the JSON of `JobOptions` holds the job's seed."""


class JobSeed(msgspec.Struct, frozen=True):
    """The seed of a job that runs a script; see `api/job_seed.py`. A model module has its own.

    Attributes:
      is_drawn: whether the launcher has drawn the number, because nobody gave one.
    """

    number: int
    is_drawn: bool = False


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """The options that a job gives to all its trainings; a script may override some of them.

    In JSON, options of the environment, a file or a reference configuration stand by their names,
    so that people can write `{"deterministic": true}`. Options of the command line stand under
    `command_line`, and the seed under `job_seed`.

    Attributes:
      command_line: options of the command line; they count before the options of a script.
      otherwise: options of a file, the environment or a reference configuration; they count where a
        script gives none.
      seed: the job's seed; None for a model module.

    Raises:
      ConfigurationError: an option cannot have the value given.
    """

    command_line: Asked = dataclasses.field(default_factory=dict)
    otherwise: Asked = dataclasses.field(default_factory=dict)
    seed: JobSeed | None = None

    def __post_init__(self) -> None:
        for source in (self.command_line, self.otherwise):
            RunOptions.of(source)

    def __hash__(self) -> int:
        return hash(self.encode())

    def with_script(self, asked: Asked = NOTHING) -> RunOptions:
        """Returns the options that count for a training whose script gives the options `asked`.

        Raises:
          ConfigurationError: two options exclude each other, or the script's own are wrong.
        """
        RunOptions.of(asked)
        return RunOptions.of(self.command_line, asked, self.otherwise)

    def encode(self) -> str:
        """Returns the options as JSON."""
        content = dict(self.otherwise)
        if self.command_line:
            content[COMMAND_LINE] = dict(self.command_line)
        if self.seed is not None:
            content[SEED] = self.seed
        return msgspec.json.encode(content).decode()

    @classmethod
    def decode(cls, text: str) -> JobOptions:
        """Reads the JSON of `encode`.

        Raises:
          ConfigurationError: the text is no JSON of options.
        """
        try:
            content = msgspec.json.decode(text, type=dict[str, Any])
            first = msgspec.convert(content.pop(COMMAND_LINE, {}), dict[str, Any])
            seed = msgspec.convert(content.pop(SEED, None), JobSeed | None)
            for source in (first, content):
                msgspec.convert(source, RunOptions)
        except msgspec.MsgspecError as error:
            raise ConfigurationError(
                f"The options {text!r} were given in HVD_ELASTIC_OPTIONS, expected JSON, such as "
                f'{{"deterministic": true}}. {error}.'
            ) from error
        return cls(first, content, seed)


NOTHING_ASKED = JobOptions()
"""The options of a job that was started without any option."""
