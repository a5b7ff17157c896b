#!/usr/bin/env python
"""Command line training script: argparse, logging, a CSV log and a JSON file of results."""

import argparse
import json
import logging
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
logger = logging.getLogger("train")


def parse_args():
    parser = argparse.ArgumentParser(description="Train a small MLP on two moons")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--n-samples", type=int, default=800)
    parser.add_argument("--noise", type=float, default=0.25)
    parser.add_argument("--output-dir", default="output")
    parser.add_argument("--seed", type=int, default=None)
    return parser.parse_args()


def make_moons(n, noise):
    t = np.pi * np.random.rand(n // 2)
    outer = np.c_[np.cos(t), np.sin(t)]
    inner = np.c_[1 - np.cos(t), 0.5 - np.sin(t)]
    x = np.r_[outer, inner] + np.random.normal(scale=noise, size=(n // 2 * 2, 2))
    y = np.r_[np.zeros(n // 2), np.ones(n // 2)]
    idx = np.random.permutation(len(x))
    return x[idx].astype("float32"), y[idx]


def build_model(lr):
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((2,)),
            tf.keras.layers.Dense(16, activation="tanh"),
            tf.keras.layers.Dense(16, activation="tanh"),
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.Adam(lr),
        loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[tf.keras.metrics.BinaryAccuracy(threshold=0.0)],
    )
    return model


def main():
    args = parse_args()
    logger.info("args: %s", vars(args))
    if args.seed is not None:
        tf.keras.utils.set_random_seed(args.seed)
    os.makedirs(args.output_dir, exist_ok=True)

    x, y = make_moons(args.n_samples, args.noise)
    model = build_model(args.lr)
    model.summary(print_fn=logger.info)
    t0 = time.time()
    history = model.fit(
        x,
        y,
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_split=0.25,
        verbose=0,
        callbacks=[tf.keras.callbacks.CSVLogger(os.path.join(args.output_dir, "history.csv"), append=True)],
    )
    logger.info("training took %.2f s", time.time() - t0)
    x_test, y_test = make_moons(400, args.noise)
    results = model.evaluate(x_test, y_test, verbose=0, return_dict=True)
    model.save(os.path.join(args.output_dir, "model.keras"))
    with open(os.path.join(args.output_dir, "results.json"), "w") as f:
        json.dump({"args": vars(args), "history": history.history, "test": results}, f, indent=2)
    print(json.dumps(results))
    print("val_loss:", history.history["val_loss"])


if __name__ == "__main__":
    main()
