"""Makes the text of a placed step or training: at most ten lines, with short names of devices."""

from __future__ import annotations

import collections
from typing import Any, List

from placeto_tf.clusters.device_names import short_name
from placeto_tf.errors import listed
from placeto_tf.placing.explaining import ms_text
from placeto_tf.placing.training_plans import short_names


def describe(training: Any) -> str:
  """Returns the lines of `print(training)`.

  Args:
    training: a `PlacedStep` or `PlacedTraining`.

  Returns:
    Ten lines at most.
  """
  plan = training.plan
  # Before the first batch there is no plan: return one line.
  if plan is None:
    return f"{training!r}"
  before, result = plan.before_us, plan.result
  gain = f", {ms_text(before)} as it was ({before / plan.step_time_us:.2f}x)" if (
      before and plan.step_time_us) else ""
  bound = f", no placement is below {ms_text(result.lower_bound_us)}" if result else ""
  lines = [f"Training step of {training.name!r}, batches of "
           f"{plan.batch_size or 'varying size'}: {plan.graph.num_ops:,} ops on "
           f"{short_names(training.cluster)}.",
           training.verdict or f"{plan!r}: measured when the first batch comes.",
           f"Simulated: {ms_text(plan.step_time_us)} placed{gain}{bound}."]
  if result is not None:
    lines.append(f"What bounds it, as simulated: {result.explanation.causes}.")
  lines += _replicas(plan)
  if training.applied is not None:
    placed = training.applied.placed
    counts = collections.Counter(short_name(variable.wanted) for variable in placed.moved)
    to = ", ".join(f"{count} to {name}" for name, count in sorted(counts.items()))
    lines.append(f"Variables: {len(placed.moved)} moved{to and f' ({to})'}, {len(placed.in_place)} "
                 "were in place.")
  # The first entry is the step that was planned.
  others = [f"{step.batch_size} run {step.how}" for step in training.steps[1:]]
  if others:
    lines.append(f"Batches of {listed(others)}.")
  last = [f"To look at it: tensorboard --logdir={training.root_dir}"] if training.root_dir else []
  # Ten lines in all.
  notes = [f"Note: {note}" for note in (result.notes if result else ())]
  return "\n".join([*lines, *notes[:10 - len(lines) - len(last)], *last])


def _replicas(plan: Any) -> List[str]:
  """Returns a line on the replicas that divide each batch, or the reason why there are none."""
  found = None if plan.result is None else plan.result.replication
  if plan.replicas > 1:
    check = f"; {found.check}" if found is not None and found.check is not None else ""
    return [f"Replicas: {plan.replicas} replicas share each batch{check}."]
  if found is None:
    return []
  tried = {row.replicas: row.step_time_us for row in found.rows.values()}
  others = [f"{count} take {ms_text(us)}" for count, us in sorted(tried.items()) if count > 1]
  why = found.refused or ", ".join(others)
  return [f"Replicas: one, each batch whole{f' ({why})' if why else ''}."]
