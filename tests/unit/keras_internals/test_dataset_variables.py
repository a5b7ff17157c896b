"""Variables that functions of datasets read belong to the state of a training."""

from __future__ import annotations

import keras
import tensorflow as tf

from hvd_elastic_keras.keras_internals.dataset_variables import variables_read

NUMBERS = tf.data.Dataset.range(8)


def test_each_variable_that_a_function_reads_is_found_once() -> None:
    first, second = tf.Variable(1.0), keras.Variable(2.0)
    inner = tf.function(lambda x: tf.cast(x, tf.float32) * second.value)
    data = NUMBERS.map(lambda x: inner(x) + first).filter(lambda x: x > first).batch(2)
    found = variables_read([data, None, data.map(lambda x: x * first), first])
    assert {id(v) for v in found} == {id(first), id(second.value)}
    assert len(found) == 2


def test_states_of_generators_and_of_maps_that_assign_are_left_out() -> None:
    seeds, count = keras.random.SeedGenerator(1), tf.Variable(0.0)
    generator = tf.random.Generator.from_seed(1)
    drawn = NUMBERS.map(lambda x: keras.random.uniform((), seed=seeds) + generator.uniform(()))
    counted = NUMBERS.map(lambda x: tf.cast(x, tf.float32) + count.assign_add(1.0))
    row = tf.Variable([0.0, 0.0])
    scattered = NUMBERS.map(lambda x: row.scatter_nd_add([[0]], [tf.cast(x, tf.float32)]))
    assert variables_read([drawn, counted, scattered]) == []


def test_a_map_that_scatters_into_a_tensor_of_its_own_changes_no_variable() -> None:
    strength = tf.Variable(1.0)
    data = NUMBERS.map(lambda x: tf.scatter_nd([[0]], [strength], [2]) + tf.cast(x, tf.float32))
    assert [id(v) for v in variables_read([data])] == [id(strength)]
