"""Looks for a learning rate and a width with Optuna; each trial is an elastic job.

    python docs/examples/tuning.py --trials=20 --num_workers=2

Called again with the same --directory, it goes on with the study.
"""

import argparse
from pathlib import Path

import keras
import optuna

from hvd_elastic_keras import ElasticCallback, FunctionFailedError, run_function
from model_zoo import digits


def train(learning_rate: float, units: int, epochs: int) -> float:
    """One trial, on each of its workers: returns the loss on the validation data."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(units, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(learning_rate), "sparse_categorical_crossentropy")
    history = model.fit(
        *digits.load("train"),
        batch_size=128,
        epochs=epochs,
        validation_data=digits.load("validation"),
        callbacks=[ElasticCallback()],
    )
    return float(history.history["val_loss"][-1])


def main() -> None:
    """Runs the study."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--num_workers", type=int, default=2)
    parser.add_argument("--directory", type=Path, default=Path("jobs/tuning"))
    given = parser.parse_args()

    def objective(trial: optuna.Trial) -> float:
        learning_rate = trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)
        units = trial.suggest_int("units", 16, 128, log=True)
        return run_function(
            train,
            (learning_rate, units, given.epochs),
            num_workers=given.num_workers,
            job_dir=given.directory / f"trial-{trial.number}",
            deterministic=True,  # a trial's value does not depend on what happens to its workers
        )

    given.directory.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name="digits",
        storage=f"sqlite:///{given.directory}/study.db",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=1),
    )
    study.optimize(objective, n_trials=given.trials, catch=(FunctionFailedError,))
    print("best", study.best_value, study.best_params)


if __name__ == "__main__":
    main()
