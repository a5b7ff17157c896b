"""The user's own step, partitioned over the rows of its batch.

A traced `train_step`, gradients and optimizer included, is a program over one whole batch. Each
worker has some of its rows. `planning/analysis.py` decides what each operation does to rows, by one
rule for each family of operations (`rules/`), and where a collective is needed. `execution.py` runs
the same operations with the rows of one worker and these collectives. So the result equals the
result of the whole batch, up to the order of additions. Nothing is inferred from values.
"""
