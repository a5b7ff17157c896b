"""One of several workers that meet through Horovod and sum one number each, as in a first step.

python -m hvd_elastic_keras.worker.probes.pair RANK SIZE INTERFACE RENDEZVOUS
"""

from __future__ import annotations

import json
import os
import resource
import sys

from hvd_elastic_keras.common.errors import CollectiveFailedError, in_one_line
from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.settings import env

GLOO_TIMEOUT_S = 20


def place(rank: int, size: int, rendezvous: str) -> Assignment:
    """Returns the place of one worker. All workers are on this host."""
    return Assignment(
        round=1,
        rank=rank,
        size=size,
        local_rank=rank,
        local_size=size,
        cross_rank=0,
        cross_size=1,
        members=tuple(f"w{number}" for number in range(size)),
        sync=False,
        root_has_state=False,
        rendezvous=rendezvous,
    )


def allreduce(rank: int, size: int, interface: str, rendezvous: str) -> float:
    """Returns the sum of (rank + 1) over all workers.

    Raises:
      CollectiveFailedError: the workers have not met.
    """
    # Imported late: an import that fails is reported like any other error.
    import horovod.tensorflow as hvd
    import tensorflow as tf

    from hvd_elastic_keras.worker.horovod_runtime import Communicator

    worker = Communicator(interface, "localhost", GLOO_TIMEOUT_S, master=None)
    worker.start(place(rank, size, rendezvous))
    with worker.collective():
        total = hvd.allreduce(tf.constant([rank + 1.0]), op=hvd.Sum, name="probe")
    worker.shut_down()
    return float(total.numpy()[0])


def main() -> int:
    """Prints the sum and the memory that this process has taken (bytes), or the error."""
    env.set_defaults({"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"})
    rank, size, interface, rendezvous = sys.argv[1:]
    try:
        total = allreduce(int(rank), int(size), interface, rendezvous)
    except CollectiveFailedError as error:
        print(json.dumps({"error": str(error)}))
        return 1
    except Exception as error:  # a broken installation may raise anything
        print(json.dumps({"error": in_one_line(error)}))
        return 1
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"sum": total, "memory": memory}))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # taking TensorFlow apart takes seconds, and there is nothing to keep
