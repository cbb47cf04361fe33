"""Checks predictions on this machine: calibrates, places and times graphs on this host's devices.

  scripts/with_env python scripts/check_here.py --out=check --max_minutes=15

Uses this host's GPUs or, if there are fewer than two, two worker processes. Writes check.md: for
three models of the zoo, and with --graph one of yours, the predicted and the measured step on one
device, placed, and with a mirrored replica on each device.
"""

from __future__ import annotations

import os

from absl import flags

from placeto_tf.programs import entry_point, shared_flags

FLAGS = flags.FLAGS

flags.DEFINE_string("out", None, "Directory of the results.", required=True)
flags.DEFINE_float("max_minutes", 15.0, "Minutes for all graphs, roughly.", lower_bound=0.1)
flags.DEFINE_string("graph", None, "Graph of your own, which is checked first: a file or a zoo: "
                    "spec.")
flags.DEFINE_list("models", None, "Graphs to check instead of the three models of the zoo; empty: "
                  "only --graph.")
shared_flags.define_reading_flags()


def main() -> None:
  """Checks and prints the page."""
  os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # which joins ops: see measure.py
  entry_point.import_tensorflow_quietly()
  from placeto_tf.evaluation import host_check

  host_check.check_host(
      [FLAGS.graph] if FLAGS.graph else [],
      None if FLAGS.models is None else list(filter(None, FLAGS.models)), FLAGS.out,
      max_minutes=FLAGS.max_minutes, options=shared_flags.graph_options(),
      progress=shared_flags.tell)
  with open(os.path.join(FLAGS.out, "check.md"), encoding="utf-8") as page:
    print(page.read())


def run() -> None:
  """Entry point of `placeto-check_here`."""
  entry_point.run_program(main)


if __name__ == "__main__":
  run()
