"""One worker process: a `tf.distribute.Server` that ends with its parent.

  python -m placeto_tf.runtime.worker --workers=10.0.0.1:2222,10.0.0.2:2222 --task=1

starts the second worker of two by hand, on the machine it is meant for; `--workers` is the same
list on all machines. Programs then connect to the workers by this list.

A TensorFlow server runs any graph that anybody sends to its port: start workers by hand only in a
network in which you trust everybody.

A worker that a program starts gets --of_parent. Its standard input is a pipe from the parent. If
the parent ends for any reason, the pipe closes, and the worker ends, too. It prints one line on
stdout when it serves: `ready HOST:PORT`. It can only be reached from its own machine (see
`loopback`), or does not start. And its threads that send and receive run ahead of those that
compute. Otherwise, on a core that computes, a message waits for the scheduler's next tick, up to 4
ms on Linux, and waits that depend on the tick's phase cannot be predicted. This needs the right to
schedule in real time (CAP_SYS_NICE); without it the worker runs as usual.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from typing import Optional, Sequence

from placeto_tf.collector import no_collections
from placeto_tf.files import streams
from placeto_tf.runtime import loopback

JOB = "worker"


def main(argv: Optional[Sequence[str]] = None) -> int:
  """Serves until it is killed, or its standard input ends.

  Args:
    argv: by default that of the process.

  Returns:
    The exit code: 0, 1 where the server fails, such as on a port that is taken, 2 for wrong flags.
  """
  options = _options(argv)
  if options.of_parent:
    # The parent cleans up after Ctrl-C; a worker that died of it on its own would look lost.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
  addresses = options.workers.split(",")
  if not 0 <= options.task < len(addresses):
    print(f"--task={options.task} is not one of the {len(addresses)} workers", file=sys.stderr)
    return 2
  own = addresses[options.task]
  # Threads inherit this from the one that starts them.
  prompt = options.of_parent and _schedule(getattr(os, "SCHED_RR", None), 1)

  with no_collections():
    import tensorflow as tf

  config = tf.compat.v1.ConfigProto(
      device_count={"CPU": 1}, inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
  try:
    server = tf.distribute.Server(
        {JOB: addresses}, job_name=JOB, task_index=options.task, config=config, start=False)
    if options.of_parent:
      loopback.restrict(int(own.rpartition(":")[2]))  # it listens, and does not serve yet
    server.start()
  except OSError as error:
    print("the worker cannot be kept from being reached by other machines "
          f"({error.strerror or error}); start the workers by hand where the network is trusted, "
          "and name them in --workers", file=sys.stderr)
    return 1
  except tf.errors.OpError as error:
    print(f"the server did not start, the port of {own} may be taken: {error.message}",
          file=sys.stderr)
    return 1
  if prompt:
    _compute_at_leisure(server.target, options.task)
  # The line that the parent waits for.
  print(f"ready {own}", flush=True)
  server.join()
  return 0


def _schedule(policy: Optional[int], priority: int) -> bool:
  """Sets the scheduling policy of the calling thread; returns whether that was possible."""
  if policy is None:  # not Linux
    return False
  try:
    os.sched_setscheduler(0, policy, os.sched_param(priority))
  except (AttributeError, OSError, TypeError):  # not permitted
    return False
  return True


def _compute_at_leisure(target: str, task: int) -> None:
  """Gives the thread that runs ops the default scheduling policy, by an op on that thread."""
  import tensorflow as tf

  v1 = tf.compat.v1
  device = f"/job:{JOB}/task:{task}"
  with tf.Graph().as_default() as graph, tf.device(f"{device}/device:CPU:0"):
    demoted = v1.py_func(lambda: _schedule(os.SCHED_OTHER, 0), [], tf.bool)
  config = v1.ConfigProto(device_filters=[device])  # the other workers may not be up yet
  with v1.Session(target, graph=graph, config=config) as session:
    session.run(demoted)


def _options(argv: Optional[Sequence[str]]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
      prog="python -m placeto_tf.runtime.worker", description=__doc__.partition("\n")[0])
  parser.add_argument("--workers", required=True, help="HOST:PORT of all workers, in their order")
  parser.add_argument("--task", type=int, required=True, help="which of them this one is, from 0")
  parser.add_argument(
      "--of_parent", action="store_true", help="end when the standard input ends; only this "
      "machine can reach the worker; messages go ahead of ops, where permitted")
  return parser.parse_args(argv)


def _end_with_stdin() -> None:
  """Ends the process, whatever it is in the middle of, when the parent's end of the pipe closes."""
  while os.read(0, 1024):
    pass
  os._exit(0)


if __name__ == "__main__":
  streams.open_streams()
  sys.exit(main())
