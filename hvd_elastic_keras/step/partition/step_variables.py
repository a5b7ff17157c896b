"""The variables of a step: as values, and from the last round of collectives on as themselves.

Nothing is assigned before the last round, since a step that fails must leave no trace: until then,
a variable that changes is a value. What is assigned after it is assigned in place, where the step
itself assigns it: the new values take no memory of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.keras_internals.traced_graphs import emit
from hvd_elastic_keras.step.partition.captured_step import ASSIGNMENTS, WRITES, on_variable


class StepVariables:
    """The variables of one step.

    Args:
      variables: by the names of their handles.

    Attributes:
      values: the values of the variables, as computed so far. The caller assigns them. A variable
        that was assigned in place is not among them.
      written: tensors from which the values assigned in place follow.
      ready: the operation after which variables may change, once it is known.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._variables = variables
        self._first_values: dict[str, Any] = {}
        self._in_place = False
        self.values: dict[str, Any] = {}
        self.written: list[Any] = []
        self.ready: Any = None

    def read(self) -> None:
        """Begins with the present values of the variables."""
        self._first_values = {n: tf.convert_to_tensor(v) for n, v in self._variables.items()}
        self.values = dict(self._first_values)

    def assign_from_here(self, ready: Any) -> None:
        """Assigns variables in place from now on, after the operation `ready`."""
        self.ready = ready
        self._in_place = True

    def used_by(self, op: Any, inputs: list[Any]) -> list[Any] | None:
        """Adds an operation on a variable. Returns None if it is another operation.

        Args:
          op: the traced operation.
          inputs: its inputs; the name of its handle stands for a variable.
        """
        name = inputs[0] if inputs else None
        if not isinstance(name, str) or op.type == "Identity":
            return on_variable(op, inputs, self.values)
        handle = self._variables[name].handle
        if op.type in ASSIGNMENTS and self.given_up(name):
            self.written += inputs[1:]
            with self.when_ready():
                return emit(op, [handle, *inputs[1:]])
        if name not in self.values and op.type not in WRITES:
            return emit(op, [handle, *inputs[1:]])
        self.take_back([name])
        return on_variable(op, inputs, self.values)

    def when_ready(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for operations after which variables may have changed.

        A branch waits as a whole.
        """
        graph = tf.compat.v1.get_default_graph()
        waits = self._in_place and self.ready.graph is graph
        return tf.control_dependencies([self.ready]) if waits else contextlib.nullcontext()

    def given_up(self, name: str) -> bool:
        """Goes on with a variable itself in place of its value. Returns whether that is possible.

        It is not if the variable has changed before the last round: then its value is ahead of it.
        """
        if self._in_place and self.values.get(name) is self._first_values[name]:
            del self.values[name]
        return self._in_place and name not in self.values

    def follow_from(self, tensors: Iterable[Any]) -> None:
        """Notes tensors from which values follow that are assigned in place, as in a branch."""
        if self._in_place:
            self.written += tensors

    def take_back(self, names: Iterable[str]) -> None:
        """Goes on with values of variables in place of the variables themselves."""
        for name in names:
            if name not in self.values:
                self.values[name] = self._variables[name].read_value()

    @contextlib.contextmanager
    def not_in_place(self) -> Iterator[None]:
        """Assigns nothing in place within a `with` statement, as in the body of a loop."""
        before, self._in_place = self._in_place, False
        yield
        self._in_place = before
