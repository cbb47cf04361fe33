"""The text of a placed step or training: ten lines, devices by their short names."""

from __future__ import annotations

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
  plan, lines = training.plan, [f"{training!r}"]
  # Nothing is planned before the first batch: one line.
  if plan is None:
    return lines[0]
  lines = [f"Training step of {training.name!r}, batches of "
           f"{plan.batch_size or 'varying size'}: {plan.graph.num_ops:,} ops on "
           f"{short_names(training.cluster)}.",
           training.verdict or f"{plan!r}: measured when the first batch comes."]
  before = plan.before_us
  gain = f", {ms_text(before)} as it was ({before / plan.step_time_us:.2f}x)" if (
      before and plan.step_time_us) else ""
  result = plan.result
  bound = f", no placement is below {ms_text(result.lower_bound_us)}" if result else ""
  lines.append(f"Simulated: {ms_text(plan.step_time_us)} placed{gain}{bound}.")
  if result is not None:
    lines.append(f"What bounds it, as simulated: {result.explanation.causes}.")
  lines += _replicas(plan)
  if training.applied is not None:
    placed = training.applied.placed
    lines.append(f"Variables: {len(placed.moved)} moved ({_by_device(placed.moved)}), "
                 f"{len(placed.in_place)} were in place." if placed.moved else
                 f"Variables: all {len(placed.in_place)} stay where they are.")
  # The first entry is the step of the plan itself.
  others = [f"{step.batch_size} run {step.how}" for step in training.steps[1:]]
  if others:
    lines.append(f"Batches of {listed(others)}.")
  notes, last = list(result.notes) if result else [], []
  if training.root_dir:
    last = [f"To look at it: tensorboard --logdir={training.root_dir}"]
  # Ten lines in all, one of them for notes that have no room.
  room = 9 - len(lines) - len(last)
  lines += [f"Note: {note}" for note in notes[:room]]
  if len(notes) > room:
    lines.append(f"{len(notes) - room} more notes in .result.notes.")
  return "\n".join(lines + last)


def _replicas(plan: Any) -> List[str]:
  """Returns a line on the replicas that divide each batch, or on why there are none."""
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


def _by_device(variables: Any) -> str:
  """Returns how many variables are on each device, such as "3 to GPU:1"."""
  counts: dict = {}
  for variable in variables:
    name = short_name(variable.wanted)
    counts[name] = counts.get(name, 0) + 1
  return ", ".join(f"{count} to {name}" for name, count in sorted(counts.items()))
