"""Measures the error of predictions, on graphs and placements fixed beforehand.

  scripts/with_env python scripts/benchmarks/study.py --out=runs/study \\
      --study=scripts/benchmarks/prediction_study.json

After an interruption the same command continues where it stopped. Writes table.md and summary.json.
The machine must do no other work. --summary computes these files from the measurements so far.
"""

from __future__ import annotations

import os

from absl import flags

from placeto_tf.programs import entry_point, shared_flags

FLAGS = flags.FLAGS

flags.DEFINE_string("study", None, "JSON file with the graphs and the options.",
                    required=True)
flags.DEFINE_string("out", None, "Directory of the results; an interrupted study continues in it.",
                    required=True)
flags.DEFINE_boolean("summary", False, "Whether to compute only the results of the measurements "
                     "so far.")


def main() -> None:
  """Measures, and prints the table."""
  os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # which joins ops: see measure.py
  import prediction_study as study
  import prediction_study_results as results

  config = study.StudyConfig.load(FLAGS.study)
  if not FLAGS.summary:
    entry_point.import_tensorflow_quietly()
    study.run_study(config, FLAGS.out, progress=shared_flags.tell)
  print(results.table(results.summarize(config, FLAGS.out)))


if __name__ == "__main__":
  entry_point.run_program(main)
