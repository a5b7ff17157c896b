"""Optimizers, precision, and the ways in which `fit` executes a step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tests.harness.keras_models.case import (
    TARGETS,
    Arguments,
    Case,
    X,
    adam,
    arrays,
    classifier,
    regressor,
    sgd,
    validated,
)

layers, optimizers, schedules = keras.layers, keras.optimizers, keras.optimizers.schedules
PLAIN = arrays()


def with_optimizer(optimizer: Any, **arguments: Any) -> Case:
    """Returns a case of a small classifier. `optimizer` makes a new optimizer for each model."""
    return Case(
        lambda: classifier(layers.Dense(5, "tanh"), optimizer=optimizer(), **arguments), PLAIN
    )


def executed(**arguments: Any) -> Case:
    """Returns a case of a small model with dropout, whose steps are executed in some way."""
    return Case(
        lambda: classifier(layers.Dense(5, "tanh"), layers.Dropout(0.3), **arguments), validated()
    )


def in_policy(policy: str, optimizer: Any = sgd) -> keras.Model:
    """Returns a classifier whose layers all use one precision."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        return classifier(layers.Dense(5, "tanh"), optimizer=optimizer())
    finally:
        keras.config.set_dtype_policy(before)


def in_double_precision() -> keras.Model:
    """Returns a model that uses double precision everywhere, in metrics too."""
    keras.config.set_floatx("float64")
    try:
        return regressor(layers.Dense(5, "tanh"))
    finally:
        keras.config.set_floatx("float32")


def loss_scale() -> Any:
    """Returns an optimizer whose loss scale grows within the training."""
    return optimizers.LossScaleOptimizer(sgd(), initial_scale=2.0**4, dynamic_growth_steps=2)


class HalvesRate(keras.callbacks.Callback):
    """Lowers the learning rate between steps."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Sets the rate of the next step."""
        self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * 0.9


def with_callbacks() -> Arguments:
    """Returns arguments with callbacks that change the training."""
    return {
        **validated()(),
        "epochs": 4,
        "callbacks": [
            HalvesRate(),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8),
            keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=1.0),
            keras.callbacks.EarlyStopping(patience=2, min_delta=1.0, restore_best_weights=True),
        ],
    }


def centralised() -> Any:
    """Returns a custom optimizer that changes gradients before it applies them."""

    class Centralised(optimizers.SGD):
        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            means = [keras.ops.mean(g, 0, keepdims=True) for g in grads]
            centred = [g - m if len(g.shape) > 1 else g for g, m in zip(grads, means, strict=True)]
            super().apply(centred, trainable_variables)

    return Centralised(0.1, momentum=0.9)


CASES = {
    "SGD with Nesterov's momentum and decay": with_optimizer(
        lambda: sgd(nesterov=True, weight_decay=0.01)
    ),
    "Adam": with_optimizer(adam),
    "AdamW with a cosine and a warm-up": with_optimizer(
        lambda: optimizers.AdamW(
            schedules.CosineDecay(0.0, 8, warmup_target=0.02, warmup_steps=3), epsilon=1e-2
        )
    ),
    "Lion": with_optimizer(lambda: optimizers.Lion(0.003)),
    "an optimizer of one's own": with_optimizer(centralised),
    "clipped norms": with_optimizer(lambda: adam(clipnorm=0.1)),
    "a clipped global norm": with_optimizer(lambda: sgd(global_clipnorm=0.1)),
    "averaged weights": with_optimizer(
        lambda: sgd(use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=4)
    ),
    "accumulated gradients": with_optimizer(lambda: adam(gradient_accumulation_steps=3)),
    "a scaled loss": with_optimizer(loss_scale),
    "constrained weights": Case(
        lambda: classifier(
            layers.Dense(5, kernel_constraint=keras.constraints.MaxNorm(0.9)),
            layers.Dense(4, kernel_constraint="non_neg", bias_constraint="unit_norm"),
        ),
        PLAIN,
    ),
    "eagerly": executed(run_eagerly=True),
    "compiled by XLA": executed(jit_compile=True),
    "three steps per execution": executed(steps_per_execution=3),
    "callbacks that change the rate and stop": Case(
        lambda: classifier(layers.Dense(5, "tanh")), with_callbacks
    ),
    "half precision": Case(
        lambda: in_policy("mixed_float16", loss_scale),
        PLAIN,
        tolerance=2e-3,
    ),
    "brain floats": Case(lambda: in_policy("mixed_bfloat16"), PLAIN, tolerance=1e-2),
    "double precision": Case(
        in_double_precision, arrays(X.astype(np.float64), TARGETS.astype(np.float64))
    ),
}
