"""Compares methods on random problems of the kinds that other tools place.

  scripts/with_env python scripts/benchmarks/made_problems.py --methods=placeto,annealing

Prints, for each kind of `placeto_tf/environments/made_problems.py` and each budget, the geometric
mean of the objective divided by the best of one device, the expert and METIS, with its deviation
over seeds. If some placements do not fit in memory, the number of placements that fit is printed,
too, because a placement that does not fit is no valid result.
Every method begins from its usual starts, which count as evaluations, and plans for the budget.
Training uses the problems with indices below 1,000.
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np
from absl import flags

from placeto_tf.programs import entry_point, shared_flags

FLAGS = flags.FLAGS

flags.DEFINE_list("kinds", ["layers", "products", "tasks", "pipelines", "packed"],
                  "Kinds of problems.")
flags.DEFINE_integer("first", 1000, "Index of the first problem of each kind.", lower_bound=0)
flags.DEFINE_integer("count", 8, "Problems of each kind.", lower_bound=1)
flags.DEFINE_list("methods", ["placeto", "placeto_uniform", "annealing", "local_search", "heft"],
                  "Methods.")
flags.DEFINE_list("budgets", ["30", "100", "300", "1000"], "Evaluations.")
flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of the searches.")
flags.DEFINE_string("policy_weights", None, "Weights for placeto; by default those that ship.")


def main() -> None:
  """Prints the table."""
  entry_point.import_tensorflow_quietly()
  from placeto_tf.environments import made_problems
  from placeto_tf.environments.problems import with_starts

  budgets, seeds = (shared_flags.whole_numbers(name) for name in ("budgets", "seeds"))
  print("| kind | method | " + " | ".join(map(str, budgets)) + " |\n|---|---|"
        + "---:|" * len(budgets))
  for kind in FLAGS.kinds:
    problems: List[Tuple[Any, float]] = []  # with the objective of the start
    for index in range(FLAGS.first, FLAGS.first + FLAGS.count):
      problem = made_problems.make(f"made:{kind}[{index}]")
      problem.simulator.num_threads = 1
      starts = with_starts(problem).starts
      problems.append((problem, float(problem.evaluate(starts[:1]).objective_us[0])))
    for method in FLAGS.methods:
      cells = [_cell(problems, method, budget, seeds) for budget in budgets]
      print(f"| {kind} | `{method}` | " + " | ".join(cells) + " |", flush=True)


def _cell(
    problems: List[Tuple[Any, float]], method: str, budget: int, seeds: Tuple[int, ...]) -> str:
  from placeto_tf.placing import registry, running
  from placeto_tf.problem.budget import Budget

  record = registry.find(method)
  options: Dict[str, Any] = {}
  if method == "placeto" and FLAGS.policy_weights:
    options["weights"] = FLAGS.policy_weights
  means, fitting = [], 0
  for seed in seeds:
    logs = []
    for problem, start_us in problems:
      fresh = problem.renewed()
      running.run(fresh, record, Budget(budget), seed, **options)
      fitting += fresh.search_log.best_fits
      logs.append(np.log(fresh.search_log.best_objective_us / start_us))
    means.append(np.exp(np.mean(logs)))
  return f"{np.mean(means):.3f}" + (
      f" ± {np.std(means, ddof=1):.3f}" if len(means) > 1 else "") + (
          f" ({fitting} of {len(seeds) * len(problems)} fit)"
          if fitting < len(seeds) * len(problems) else "")


if __name__ == "__main__":
  entry_point.run_program(main)
