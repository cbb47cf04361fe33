"""Tables and plots of the rows that `evaluate` returns."""

from __future__ import annotations

import collections
import os
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple, Union

import numpy as np

from placeto_tf.errors import PlacetoError
from placeto_tf.evaluation.evaluation_config import REPLICAS
from placeto_tf.evaluation.runs import read_history
from placeto_tf.graphs import user_files
from placeto_tf.placing import registry
from placeto_tf.placing.registry import DATA_PARALLEL

Row = Dict[str, Any]
# The excess that the plot of ratios shows as zero, in percent.
_LEAST_EXCESS = 0.1
_WITHIN = 0.01  # of the best, where it counts as reached
_LEAST = 1e-3  # seconds below a clock's resolution


def step_time_table(rows: Sequence[Row]) -> str:
  """Markdown: a line per graph and cluster, a column per method, step times in ms.

  Several seeds are shown as mean ± standard deviation. For a policy, the share by which it is below
  its start follows in parentheses. The last column is the lower bound, the last
  line each method's geometric mean of step time over the best in its line.
  """
  methods = list(dict.fromkeys(row["method"] for row in rows))
  cells: Dict[tuple, Dict[str, List[Row]]] = collections.defaultdict(dict)
  for row in rows:
    cells[row["graph"], row["cluster"]].setdefault(row["method"], []).append(row)
  lines = ["| graph | cluster | " + " | ".join(methods) + " | bound |",
           "|---|---|" + "---:|" * (len(methods) + 1)]
  ratios: Dict[str, List[float]] = collections.defaultdict(list)
  for (graph, cluster), by_method in cells.items():
    best = min(row["step_time_us"] for found in by_method.values() for row in found)
    line = [graph.replace("zoo:", ""), cluster]
    for method in methods:
      found = by_method.get(method, [])
      line.append(_cell(found))
      if found:
        ratios[method].append(_mean(found, "step_time_us") / best)
    bound = next(iter(by_method.values()))[0]["lower_bound_us"]
    lines.append("| " + " | ".join(line + [f"{bound / 1e3:.1f}"]) + " |")
  lines.append("| over the best, geometric mean | | " + " | ".join(
      f"{geometric_mean(ratios[method]):.3f}" for method in methods) + " | |")
  return "\n".join(lines)


def comparison_table(rows: Sequence[Row]) -> str:
  """Markdown: a line per graph, cluster and method, means over seeds.

  Columns: step time (with its standard deviation); the step times of one device and of the expert
  split over it, where these are among the methods (above 1: faster than these); its ratio to the
  best known and to the lower bound; seconds; evaluations; peak memory of the fullest device. The
  last lines are geometric means of each method.
  """
  lines = ["| graph | cluster | method | step ms | single / it | expert / it | it / best "
           "| it / bound | seconds | evaluations | peak GB |", "|---|---|---|" + "---:|" * 8]
  grouped: Dict[tuple, Dict[str, List[Row]]] = collections.defaultdict(dict)
  for row in rows:
    grouped[row["graph"], row["cluster"]].setdefault(row["method"], []).append(row)
  ratios: Dict[str, List[List[float]]] = collections.defaultdict(list)
  for (graph, cluster), by_method in grouped.items():
    times = {name: _mean(by_method[name], "step_time_us") if name in by_method else float("nan")
             for name in ("single", "expert")}
    best = min(row["step_time_us"] for found in by_method.values() for row in found)
    for method, found in by_method.items():
      us = _mean(found, "step_time_us")
      own = [times["single"] / us, times["expert"] / us, us / best,
             us / _mean(found, "lower_bound_us")]
      ratios[method].append(own)
      lines.append("| " + " | ".join(
          [graph.replace("zoo:", ""), cluster, method, _times(found), *map(_ratio, own),
           f"{_mean(found, 'seconds'):.1f}", f"{_mean(found, 'evaluations'):,.0f}",
           f"{_mean(found, 'peak_memory_bytes') / 2**30:.2f}"]) + " |")
  for method, own in ratios.items():
    means = [geometric_mean(column) for column in zip(*own)]
    lines.append("| " + " | ".join(
        ["geometric mean", "", method, "", *map(_ratio, means), "", "", ""]) + " |")
  return "\n".join(lines)


def budget_tables(evaluations: Mapping[int, Tuple[Sequence[Row], str]]) -> str:
  """Markdown: what each method reaches with each of some budgets.

  The objective is used, which has a penalty for placements that do not fit.

  There are two tables per cluster, and two for all clusters if there are several. The first has
  each method's geometric mean over graphs of the objective over the start's, with its deviation
  over seeds. The second has the same over the best of the methods that need no search, with the
  share of (graph, seed) pairs in which it is better. Methods without a start, in the first, have
  the start of the others.

  Args:
    evaluations: number of evaluations of a run -> rows of an evaluation, and its directory, for the
      histories. All have the same graphs, clusters, methods and seeds.
  """
  found_us: Dict[int, Dict[tuple, np.ndarray]] = {  # the objective at each improvement
      budget: {_run(row): _history(row, out)[:, 2] for row in rows}
      for budget, (rows, out) in sorted(evaluations.items())}
  rows = evaluations[max(evaluations)][0]
  blocks = []
  clusters = list(dict.fromkeys(row["cluster"] for row in rows))
  for names in [[name] for name in clusters] + ([clusters] if len(clusters) > 1 else []):
    chosen = [row for row in rows if row["cluster"] in names]
    title = ", ".join(f"`{name}`" for name in names)
    starts: Dict[tuple, float] = {}
    simple: Dict[tuple, float] = collections.defaultdict(lambda: float("inf"))
    for row in chosen:
      key, us = (row["graph"], row["cluster"]), found_us[max(found_us)][_run(row)]
      if not _searches(row):
        simple[key] = min(simple[key], us[-1])
      elif row["start_us"] is not None:
        starts[key] = us[0]
    for text, base in (("the start", starts), ("the best without a search", simple)):
      if base:
        blocks.append(f"Over {text}, {title}:\n\n" + _budget_table(
            chosen, found_us, base, share=base is simple))
  return "\n\n".join(blocks)


def _budget_table(
    rows: Sequence[Row], found_us: Mapping[int, Mapping[tuple, np.ndarray]],
    base: Mapping[tuple, float], share: bool) -> str:
  lines = ["| evaluations | " + " | ".join(f"{budget:,}" for budget in found_us) + " |",
           "|---|" + "---:|" * len(found_us)]
  for method in dict.fromkeys(row["method"] for row in rows):
    logs: Dict[int, List[np.ndarray]] = collections.defaultdict(list)
    for row in rows:
      key = row["graph"], row["cluster"]
      if row["method"] == method and key in base:
        logs[row["seed"]].append(np.log(
            np.array([found[_run(row)][-1] for found in found_us.values()]) / base[key]))
    if not logs:
      continue
    means = np.exp([np.mean(found, axis=0) for found in logs.values()])  # [seeds, budgets]
    better = np.mean(np.concatenate(list(logs.values())) < -1e-9, axis=0)
    lines.append(f"| {method} | " + " | ".join(
        f"{column.mean():.3f}" + (f" ± {column.std(ddof=1):.3f}" if len(column) > 1 else "")
        + (f" ({100 * part:.0f} %)" if share else "")
        for column, part in zip(means.T, better)) + " |")
  return "\n".join(lines)


def replicas_table(rows: Sequence[Row], out: str) -> str:
  """Markdown: a line per row of `REPLICAS`, for as many examples as a step of one replica has.

  Columns: step times of the best of the other methods, of data parallelism and of replicas; which
  replicas; examples a second; the lower bound; how many times as long as replicas the first two
  and the better of them take; what training replicas beside the graph gave. The last line is the
  geometric means of these ratios.

  Args:
    rows: of an evaluation.
    out: its directory, for the reports.
  """
  lines = ["| graph | cluster | placement alone | data parallelism | with replicas | replicas "
           "| examples/s | bound | over replicas: alone | data parallelism | better of both "
           "| check |",
           "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|"]
  ratios = []
  for row in rows:
    if row["method"] != REPLICAS:
      continue
    report = user_files.read_json_object(
        os.path.join(out, "reports", os.path.basename(row["placement"])), what="the report",
        remedy="delete the row to run it again")
    us = row["step_time_us"]
    try:
      found, baseline = report["replicas"], report["baselines"].get(DATA_PARALLEL, {})
      form = (found["placed"] or {"form": "1"})["form"]
      rate = found["rows"][form]["examples_per_second"]
      check = (found["check"] or {}).get("text", "")
      parallel_us = baseline["step_time_us"] * us / report["step_time_us"] if (
          baseline.get("fits")) else float("nan")
    except (AttributeError, KeyError, TypeError):
      raise PlacetoError(f"the report of {row['placement']!r} is none; delete the row to run it "
                         "again") from None
    alone_us = min((other["step_time_us"] for other in rows if other["method"] != REPLICAS
                    and all(other[name] == row[name] for name in ("graph", "cluster"))
                    and other["fits"]), default=float("nan"))
    ratios.append([alone_us / us, parallel_us / us, float(np.fmin(alone_us, parallel_us)) / us])
    lines.append("| " + " | ".join([
        row["graph"].replace("zoo:", ""), row["cluster"],
        *(f"{each / 1e3:,.1f}" for each in (alone_us, parallel_us, us)), form,
        f"{rate:,.0f}" if rate else "-", f"{row['lower_bound_us'] / 1e3:,.1f}",
        *map(_ratio, ratios[-1]), check]) + " |")
  means = (geometric_mean([each for each in column if not np.isnan(each)])
           for column in zip(*ratios))
  lines.append("| geometric mean |" + " |" * 7 + " " + " | ".join(map(_ratio, means)) + " | |")
  return "\n".join(lines)


def _searches(row: Row) -> bool:
  return row["method"] == REPLICAS or registry.find(row["method"]).kind.searches


def reach_table(rows: Sequence[Row], out: str, reference: str) -> str:
  """Markdown: evaluations until each method was near its own best, and near another method's.

  A line per graph, cluster and method, means over seeds; the last lines are geometric means. The
  first columns have the evaluations and seconds until the best so far was within a share of the
  run's final result. The next have the same for the final result of the run of `reference` with the
  same seed, and how many times as many evaluations `reference` itself took. Seeds that never got
  there count with all their evaluations, which flatters them: such figures are marked with > and <;
    if no
  seed got there, the cell says "never". The last lines then only say in how many runs. The
  objective is used, which has a penalty for placements that do not fit.

  Args:
    rows: of an evaluation.
    out: its directory, for the histories.
    reference: a method among them.

  Raises:
    PlacetoError: `reference` is not among the methods.
  """
  methods = list(dict.fromkeys(row["method"] for row in rows))
  if reference not in methods:
    raise PlacetoError(
        f"the method to reach is {reference!r}, which was not run; expected one of "
        + ", ".join(methods))
  histories = {_run(row): _history(row, out) for row in rows}
  lines = ["| graph | cluster | method | evaluations to its own best | seconds "
           f"| evaluations to the best of {reference} | seconds | {reference} takes, times |",
           "|---|---|---|" + "---:|" * 5]
  grouped: Dict[tuple, List[Row]] = collections.defaultdict(list)
  for row in rows:
    grouped[row["graph"], row["cluster"], row["method"]].append(row)
  by_method: Dict[str, List[tuple]] = collections.defaultdict(list)
  for (graph, cluster, method), found in grouped.items():
    runs = [_reach(row, histories, reference) for row in found]
    *means, times, share = (np.mean(column) for column in zip(*runs))
    line = (*means, np.exp(times), share)
    by_method[method].append(line)
    lines.append(_reach_line([graph.replace("zoo:", ""), cluster, method], line))
  for method, averages in by_method.items():
    *columns, shares = zip(*averages)
    line = (*(geometric_mean(np.maximum(column, _LEAST)) for column in columns), 1.0)
    lines.append(_reach_line(["geometric mean", "", method], line, float(np.mean(shares))))
  return "\n".join(lines)


def _reach(
    row: Row, histories: Mapping[tuple, np.ndarray], reference: str) -> tuple:
  """(evaluations, seconds to the run's own best; the same to the reference's best, or all of the
  run; log of how many times as many the reference takes; 1 if it got there, else 0)."""
  history, other = histories[_run(row)], histories[_run({**row, "method": reference})]
  own = history[history[:, 2] <= (1 + _WITHIN) * history[-1, 2]][0, :2]
  target_us = (1 + _WITHIN) * other[-1, 2]
  there = history[history[:, 2] <= target_us]
  its = there[0, :2] if len(there) else (row["evaluations"], row["seconds"])
  takes = other[other[:, 2] <= target_us][0, 0]
  return (*own, *its, np.log(takes / its[0]), float(len(there) > 0))


def _reach_line(names: List[str], line: tuple, of_runs: float = 1.0) -> str:
  own, own_seconds, its, its_seconds, times, share = line
  cells = [f"{own:,.0f}", f"{own_seconds:.1f}", "never", "-", "-"]
  if of_runs < 1:
    cells[2] = f"in {100 * of_runs:.0f} % of runs" if of_runs > 0 else "never"
  elif share > 0:
    more, less = ("", "") if share == 1 else ("> ", "< ")
    cells[2:] = [f"{more}{its:,.0f}", f"{more}{its_seconds:.1f}", f"{less}{times:.2f}"]
  return "| " + " | ".join(names + cells) + " |"


def _run(row: Row) -> tuple:
  return row["graph"], row["cluster"], row["method"], row["seed"]


def _ratio(value: float) -> str:
  return "-" if np.isnan(value) else f"{value:.3f}"


def _times(found: List[Row]) -> str:
  times = np.array([row["step_time_us"] for row in found]) / 1e3
  text = f"{times.mean():.1f}"
  if len(times) > 1:
    text += f" ± {times.std(ddof=1):.1f}"
  if not all(row["fits"] for row in found):
    text += " out of memory"
  return text


def _cell(found: List[Row]) -> str:
  if not found:
    return "-"
  text = _times(found)
  starts = [row["start_us"] for row in found]
  if None not in starts:
    gains = [1 - row["step_time_us"] / row["start_us"] for row in found]
    text += f" (-{100 * np.mean(gains):.1f} %)"
  return text


def _mean(rows: Sequence[Row], field: str) -> float:
  return float(np.mean([row[field] for row in rows]))


def geometric_mean(values: Union[Sequence[float], np.ndarray]) -> float:
  """The geometric mean of positive numbers; NaN for none."""
  return float(np.exp(np.mean(np.log(values)))) if len(values) else float("nan")


def write_plots(rows: Sequence[Row], out: str) -> List[str]:
  """Writes ratio_cdf.png, by_evaluations.png and by_seconds.png into `out`; returns their paths."""
  best: Dict[tuple, float] = collections.defaultdict(lambda: float("inf"))
  for row in rows:
    key = row["graph"], row["cluster"]
    best[key] = min(best[key], row["step_time_us"])
  return [
      _plot(out, "ratio_cdf.png", "step time above the best known, %", "share of runs",
            lambda axes: _cdf(axes, rows, best)),
      _plot(out, "by_evaluations.png", "placements evaluated", "best so far over the best known",
            lambda axes: _curves(axes, rows, best, out, 0)),
      _plot(out, "by_seconds.png", "seconds", "best so far over the best known",
            lambda axes: _curves(axes, rows, best, out, 1)),
  ]


def _plot(
    out: str, name: str, x: str, y: str, draw: Callable[[Any], None]) -> str:
  import matplotlib
  from matplotlib.figure import Figure  # no pyplot: no global state, no display
  from matplotlib.rcsetup import cycler

  figure = Figure(figsize=(8.5, 4.5), layout="constrained")
  axes = figure.subplots()
  # There are more methods than colours.
  axes.set_prop_cycle(
      cycler(linestyle=["-", "--", ":"]) * matplotlib.rcParamsDefault["axes.prop_cycle"])
  draw(axes)
  axes.set_xlabel(x)
  axes.set_ylabel(y)
  axes.set_xscale("log")
  axes.grid(alpha=0.3)
  axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
  path = os.path.join(out, name)
  figure.savefig(path, dpi=120)
  return path


def _cdf(axes: Any, rows: Sequence[Row], best: Dict[tuple, float]) -> None:
  """Draws the share of runs within a given excess over the best, on a logarithmic axis."""
  excess = {
      method: sorted(100 * (row["step_time_us"] / best[row["graph"], row["cluster"]] - 1)
                     for row in rows if row["method"] == method)
      for method in dict.fromkeys(row["method"] for row in rows)}
  right = 1.5 * max(_LEAST_EXCESS, max(found[-1] for found in excess.values()))
  for method, found in excess.items():
    shares = np.arange(1, len(found) + 1) / len(found)
    x = np.maximum(found, _LEAST_EXCESS)
    axes.step(np.r_[_LEAST_EXCESS, x, right], np.r_[0, shares, 1], where="post", label=method)
  axes.set_xlim(_LEAST_EXCESS, right)


def _history(row: Row, out: str) -> np.ndarray:
  """[K, 3] evaluations, seconds and objective at each improvement of a row's run."""
  return np.array(read_history(row, out))


def _curves(
    axes: Any, rows: Sequence[Row], best: Dict[tuple, float], out: str, column: int) -> None:
  """The geometric mean over runs of the best so far, at each x where any run improves.

  A method's curve starts where all its runs have a placement, and ends where the last of them
  ended, with a dot for a solid line or a square for a dashed one.
  """
  for method in dict.fromkeys(row["method"] for row in rows):
    histories, ends = [], []
    for row in (row for row in rows if row["method"] == method):
      history = _history(row, out)
      histories.append((history[:, column], history[:, 2] / best[row["graph"], row["cluster"]]))
      ends.append(row["evaluations" if column == 0 else "seconds"])
    xs = np.unique(np.concatenate([x for x, _ in histories] + [ends]))
    xs = xs[xs >= max(x[0] for x, _ in histories)]
    logs = [np.log(y[np.searchsorted(x, xs, side="right") - 1]) for x, y in histories]
    mean = np.exp(np.mean(logs, axis=0))
    line, = axes.step(xs, mean, where="post", label=method)
    axes.plot(xs[-1:], mean[-1:], {"-": "o", "--": "s"}.get(line.get_linestyle(), "^"),
              color=line.get_color(), markersize=4)
