"""The memory of all callbacks of a training, as it goes to newcomers and into checkpoints."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any

import keras

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.observe.notices import notices
from hvd_elastic_keras.state import callback_globals, callback_state, callback_variables, json_codec
from hvd_elastic_keras.state.callback_globals import Place
from hvd_elastic_keras.state.dataclass_values import UnknownClassError
from hvd_elastic_keras.state.packing import Tree

log = logging.getLogger(__name__)

ANEW = "the state has nothing for the callbacks {}, which begin anew"
NOT_MADE = (
    "{} has not made {} when it takes over the values of other workers, or of a checkpoint. Make "
    "models, metrics and variables in __init__ or on_train_begin of a callback."
)


class CallbackMemory:
    """What callbacks remember, by their kinds.

    Args:
      callbacks: all callbacks, in the order of their calls.
      model: the model that is trained.
      on_root_only: kinds of callbacks that run on rank 0 only. Their memory is not sent.
      data_draw: whether the data may draw from `random` and `np.random`, too. Their states are then
        not sent.
    """

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        model: keras.Model,
        on_root_only: tuple[type, ...],
        *,
        data_draw: bool,
    ) -> None:
        self._callbacks = callbacks
        self._model = model
        self._on_root_only = on_root_only
        self._data_draw = data_draw
        self._begun: set[int] = set()
        self._early: dict[int, dict[str, Any]] = {}
        """Values from a checkpoint for variables that callbacks make in `on_train_begin`."""
        self._named: set[str] = set()
        """Attributes that people have been told cannot be sent."""
        self._outside_before = callback_globals.encoded(self._outside())

    def begin(self, callback: keras.callbacks.Callback, *, goes_on: bool) -> None:
        """Calls `on_train_begin` of a callback that is sent.

        Args:
          goes_on: whether the training has begun. The callback then keeps its attributes, which
            may come from a checkpoint.
        """
        self._begun.add(id(callback))
        if not goes_on:
            callback.on_train_begin({})
            return
        remembered = callback_state.attributes(callback, self._model)
        outside = self._outside()
        values = callback_globals.encoded(outside)
        callback.on_train_begin({})
        self._take(callback, remembered)
        self._take(callback, self._early.pop(id(callback), {}))
        self._set_outside(outside, values)

    def name_what_is_lost(self) -> None:
        """Notes which attributes cannot be sent. People are told of these before the first step."""
        self._named |= self._lost_now().keys()

    def unsendable_warning(self) -> str:
        """Returns a warning that names the attributes that cannot be sent to another worker.

        The warning is empty if there are none.
        """
        return callback_state.warning_of(self._lost_now())

    def state(self) -> dict[str, Any]:
        """Returns the memory of the callbacks, as far as it can be sent to another worker.

        An attribute that cannot be sent is named once in the log, unless that was known when the
        callbacks began.
        """
        attributes = [
            callback_state.attributes(c, self._model) if self._is_sent(c) else {}
            for c in self._callbacks
        ]
        outside = self._outside()
        present = callback_globals.encoded(outside)
        self._name_late(self._find_lost(outside, present, attributes))
        changed = {n: v for n, v in present.items() if self._outside_before.get(n) != v}
        return {
            "attributes": attributes,
            "kinds": self._kinds(),
            "named": sorted(self._named),
            "outside": changed,
            "outside_variables": callback_variables.encoded(self._outside_variables(outside)),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over a result of `state` of another worker, or from a checkpoint.

        Callbacks that the root, or the run that wrote the checkpoint, did not have keep their own.

        Raises:
          ConfigurationError: it cannot be told which state belongs to which callback.
        """
        self._named |= set(state["named"])
        outside = self._outside()
        self._set_outside(outside, state.get("outside", {}))
        left = callback_variables.assign(
            self._outside_variables(outside), state.get("outside_variables", {})
        )
        if left:
            self._tell_not_made("the script", left)
        own, saved = self._kinds(), state["attributes"]
        kinds = state.get("kinds", own)  # earlier releases did not name them
        if len(kinds) != len(saved):
            raise ConfigurationError(
                f"An earlier release has written a state of {len(saved)} callbacks, but now there "
                f"are {len(own)}: {', '.join(own)}. Use the same callbacks, or another job_dir."
            )
        others = list(zip(kinds, saved, strict=True))
        anew = []
        for callback, kind in zip(self._callbacks, own, strict=True):
            found = next((i for i, (name, _) in enumerate(others) if name == kind), None)
            if found is not None:
                self._take(callback, others.pop(found)[1])
            elif self._is_sent(callback):
                anew.append(kind)
        if anew:
            notices.tell(f"warning: {ANEW.format(', '.join(anew))}")

    def _take(self, callback: keras.callbacks.Callback, attributes: dict[str, Any]) -> None:
        left = callback_state.set_attributes(callback, attributes, self._model)
        if left and id(callback) in self._begun:
            self._tell_not_made(type(callback).__name__, left)
        elif left:
            name = callback_state.OWN_VARIABLES
            self._early[id(callback)] = {name: attributes[name]}

    def _tell_not_made(self, who: str, left: Iterable[str]) -> None:
        notices.tell(f"warning: {NOT_MADE.format(who, ', '.join(left))}")

    def _outside(self) -> dict[str, Place]:
        """Returns the places outside of callbacks that their code names."""
        found: dict[str, Place] = {}
        kinds: Counter[str] = Counter()
        for callback, kind in zip(self._callbacks, self._kinds(), strict=True):
            kinds[kind] += 1
            called = kind if kinds[kind] == 1 else f"{kind} {kinds[kind]}"
            if self._is_sent(callback):
                found |= callback_globals.outside_of(callback, self._model, called)
        left_out = callback_globals.RANDOM_STATES if self._data_draw else {}
        return {name: place for name, place in found.items() if name not in left_out}

    def _outside_variables(self, outside: dict[str, Place]) -> callback_variables.Found:
        values = {name: place.value for name, place in outside.items()}
        return callback_variables.variables_in(values, self._model)

    def _set_outside(self, outside: dict[str, Place], values: dict[str, Tree]) -> None:
        for name, encoded in values.items():
            try:
                value = json_codec.decode(encoded)
            except UnknownClassError as error:
                log.warning("%s is not taken over: %s", name, error)
                continue
            if name in outside:
                outside[name].set(value)
            elif name.startswith(callback_globals.OF_MODEL):
                setattr(self._model, name.removeprefix(callback_globals.OF_MODEL), value)

    def _is_sent(self, callback: keras.callbacks.Callback) -> bool:
        return not isinstance(callback, self._on_root_only)

    def _kinds(self) -> list[str]:
        return [type(callback).__name__ for callback in self._callbacks]

    def _lost_now(self) -> dict[str, str]:
        outside = self._outside()
        nothing: list[dict[str, Any]] = [{} for _ in self._callbacks]
        return self._find_lost(outside, callback_globals.encoded(outside), nothing)

    def _find_lost(
        self, outside: dict[str, Place], sent: Container[str], encoded: list[dict[str, Any]]
    ) -> dict[str, str]:
        pairs = [c for c in zip(self._callbacks, encoded, strict=True) if self._is_sent(c[0])]
        callbacks, attributes = [c for c, _ in pairs], [a for _, a in pairs]
        lost = callback_state.unsendable_warning(callbacks, attributes)
        lost |= callback_globals.iterators_in(outside)
        in_parts = callback_globals.is_sent_in_parts
        return {n: kind for n, kind in lost.items() if not in_parts(n, outside, sent)}

    def _name_late(self, lost: dict[str, str]) -> None:
        late = {name: kind for name, kind in lost.items() if name not in self._named}
        if late:
            self._named |= late.keys()
            log.warning("%s", callback_state.warning_of(late))
