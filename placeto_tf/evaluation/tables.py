"""Tables and pictures of the rows that `evaluate` returns, by pandas and matplotlib.

Dimensions: K improvements of a run.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Sequence

import numpy as np
import pandas as pd

from placeto_tf.evaluation.evaluate import read_history
from placeto_tf.evaluation.evaluation_config import REPLICAS
from placeto_tf.files import user_files
from placeto_tf.placing import registry
from placeto_tf.placing.registry import DATA_PARALLEL

CASE = ["graph", "cluster"]
_WITHIN = 0.01  # a result counts as found within this share above it
_CLOCK_SECONDS = 1e-3  # the resolution of a clock


def markdown(table: pd.DataFrame) -> str:
  """Returns a table in Markdown; columns of words are on the left, of numbers on the right."""
  cells = table.astype(str)
  words = ("graph", "spec", "cluster", "method", "replicas", "check", "op", "type", "figure",
           "way to run", "group", "card", "model", "source", "note")
  rule = ["---" if name in words else "---:" for name in table]
  return "\n".join("| " + " | ".join(map(str, row)) + " |"
                   for row in (list(table), rule, *cells.to_numpy().tolist()))


def geometric_mean(values: Any) -> float:
  """Returns the geometric mean of positive numbers without NaN; NaN if there are none."""
  found = np.asarray(values, dtype=float)
  # NaN marks a ratio that is not known.
  found = found[~np.isnan(found)]
  return float(np.exp(np.log(found).mean())) if len(found) else float("nan")


def final(rows: pd.DataFrame) -> pd.DataFrame:
  """Returns the rows of the largest budget."""
  return rows[rows["budget"].isna() | (rows["budget"] == rows["budget"].max())]


def step_time_table(rows: pd.DataFrame) -> str:
  """Returns a Markdown table of step times in ms, with a column per method.

  There is a line for each graph and cluster. Several seeds are shown as mean ± standard deviation,
  followed by the percentage by which the method is below its start. The last column is the lower
  bound. The last line has, for each method, the geometric mean of its step time divided by the best
  step time of the same line.
  """
  rows = _named(rows)
  # A cell per case and method, then methods become columns.
  cells = rows.groupby([*CASE, "method"], sort=False)[list(rows)].apply(_cell).unstack("method")
  # The bound is the same for all methods of a case.
  bounds_ms = rows.groupby(CASE, sort=False)["lower_bound_us"].first() / 1e3
  cells["bound"] = bounds_ms.map("{:.1f}".format)
  methods = list(dict.fromkeys(rows["method"]))
  table = cells[[*methods, "bound"]].fillna("-").reset_index()
  # At least 1; 1 if the method has the best step time of its line.
  rows["over"] = rows["step_time_us"] / rows.groupby(CASE)["step_time_us"].transform("min")
  over = rows.groupby([*CASE, "method"], sort=False)["over"].mean()
  last = over.groupby("method").agg(geometric_mean).map("{:.3f}".format)
  table.loc[len(table)] = ["geometric mean over the best", "", *last[methods], ""]
  return markdown(table)


def budget_tables(rows: pd.DataFrame, out: str) -> str:
  """Returns Markdown tables of each method's result with each budget, for each cluster.

  Results are objectives: step times, with a penalty for placements that do not fit. There are two
  tables for each cluster, and two for all clusters together if there are several clusters. Lower
  ratios are better. The first table has the objective of each method divided by the objective of
  the start: the geometric mean over graphs, with the deviation over seeds. The second table has the
  objective divided by the best objective of the methods that need no search, and the share of runs
  that are better than this best objective.

  Args:
    rows: of an evaluation with budgets; methods that do not search have rows for the largest
      budget alone.
    out: the evaluation's directory, for the histories.

  Returns:
    The tables, each after a line with its title.
  """
  rows = rows.copy()
  histories = [read_history(row, out)[:, 2] for row in rows.to_dict("records")]
  rows["objective_us"] = [found[-1] for found in histories]
  rows["first_us"] = [found[0] for found in histories]
  searches = rows["method"].map(_searches)
  clusters = list(dict.fromkeys(rows["cluster"]))
  blocks = []
  # Each cluster alone, then all of them together.
  for names in [[name] for name in clusters] + ([clusters] if len(clusters) > 1 else []):
    here = rows["cluster"].isin(names)
    starts = rows[here & searches & rows["start_us"].notna()]
    simple = rows[here & ~searches]
    for text, base_us, share in (
        ("the start", starts.groupby(CASE)["first_us"].last(), False),
        ("the best without a search", simple.groupby(CASE)["objective_us"].min(), True)):
      if len(base_us):
        blocks.append(f"Step time over {text}, {', '.join(f'`{name}`' for name in names)}:\n\n"
                      + _budget_table(rows[here], base_us, share))
  return "\n\n".join(blocks)


def _budget_table(rows: pd.DataFrame, base_us: pd.Series, share: bool) -> str:
  rows = rows.join(base_us.rename("base_us"), on=CASE).dropna(subset=["base_us"])
  # Means of logarithms are geometric means.
  rows["log"] = np.log(rows["objective_us"] / rows["base_us"])
  budgets = sorted(rows["budget"].dropna().unique())
  table = []
  for method, found in rows.groupby("method", sort=False):
    line = {"method": method}
    for budget in budgets:
      # A method that does not search has the same result with any budget.
      at = found[found["budget"] == budget] if _searches(method) else found
      # Per seed the geometric mean over graphs; below, mean and deviation over seeds.
      seeds = np.exp(at.groupby("seed")["log"].mean())
      line[f"{budget:,} evaluations"] = "-" if at.empty else (
          f"{seeds.mean():.3f}" + (f" ± {seeds.std():.3f}" if len(seeds) > 1 else "")
          + (f" ({100 * (at['log'] < -1e-9).mean():.0f} %)" if share else ""))
    table.append(line)
  return markdown(pd.DataFrame(table))


def replicas_table(rows: pd.DataFrame, out: str) -> str:
  """Returns a table with a line per row of `REPLICAS`.

  Step times are for as many examples as a step of one replica has. Columns: step times of the best
  other method, of data parallelism, and with replicas; the replicas; examples per second; the lower
  bound; the step times of the best other method, of data parallelism, and of the better of both,
  each divided by that with replicas (above 1: replicas are faster); the check of the replicas. The
  last line has geometric means.

  Args:
    rows: of an evaluation.
    out: the evaluation's directory, for the reports.
  """
  rows = _named(rows)
  alone_us = rows[(rows["method"] != REPLICAS) & rows["fits"]].groupby(CASE)["step_time_us"].min()
  lines, ratios = [], []
  for row in rows[rows["method"] == REPLICAS].to_dict("records"):
    us = row["step_time_us"]
    strategy, rate, parallel_us, check = _of_report(row, out)
    alone = alone_us.get((row["graph"], row["cluster"]), np.nan)
    ratios.append([alone / us, parallel_us / us, np.fmin(alone, parallel_us) / us])
    lines.append([
        row["graph"], row["cluster"], *(f"{each / 1e3:,.1f}" for each in (alone, parallel_us, us)),
        strategy, f"{rate:,.0f}" if rate else "-", f"{row['lower_bound_us'] / 1e3:,.1f}",
        *map(_ratio, ratios[-1]), check])
  means = [_ratio(geometric_mean(column)) for column in np.reshape(ratios, (-1, 3)).T]
  lines.append(["geometric mean", *[""] * 7, *means, ""])
  return markdown(pd.DataFrame(lines, columns=[
      "graph", "cluster", "one replica, ms", "data parallelism, ms", "with replicas, ms",
      "replicas", "examples/s", "bound, ms", "one / with replicas", "data parallelism / with",
      "better / with", "check"]))


def _of_report(row: Dict[str, Any], out: str) -> List[Any]:
  """Returns replicas, examples/s, us of data parallelism for equal examples, and the check."""
  report = user_files.read_json_object(
      os.path.join(out, "reports", os.path.basename(row["placement"])), what="the report",
      remedy="delete the row to run it again")
  found, parallel = report["replicas"], report["baselines"].get(DATA_PARALLEL, {})
  strategy = (found["placed"] or {"strategy": "1"})["strategy"]
  parallel_us = parallel["step_time_us"] * row["step_time_us"] / report["step_time_us"] if (
      parallel.get("fits")) else np.nan
  return [strategy, found["rows"][strategy]["examples_per_second"], parallel_us,
          (found["check"] or {}).get("text", "")]


def reach_table(rows: pd.DataFrame, out: str, reference: str) -> str:
  """Returns a table of the evaluations until each method was near its own and `reference`'s result.

  A line per graph, cluster and method has means over seeds; the last lines are geometric means. The
  first columns have the evaluations and seconds until the best so far was within 1 % of the run's
  result. The next columns have the same for the result of `reference` with the same seed, and the
  evaluations of `reference` divided by the method's. Seeds that never found such a result count
  with all their evaluations, which is too favourable; such figures are marked with > and <. If no
  seed found it, the cell says "never"; if only some runs did, the last lines have their percentage.
  Results are objectives, which have a penalty for placements that do not fit.

  Args:
    rows: of an evaluation.
    out: the evaluation's directory, for the histories.
    reference: one of the methods of the rows.
  """
  rows = _named(rows)
  run = [*CASE, "method", "seed"]
  histories = {tuple(row[name] for name in run): read_history(row, out)
               for row in rows.to_dict("records")}
  found = []
  for row in rows.to_dict("records"):
    key = tuple(row[name] for name in run)
    history, other = histories[key], histories[(*key[:2], reference, key[3])]  # [K, 3]
    # First improvement within 1 % of the run's own result.
    own = history[history[:, 2] <= (1 + _WITHIN) * history[-1, 2]][0]
    target_us = (1 + _WITHIN) * other[-1, 2]
    there = history[history[:, 2] <= target_us]
    evaluations, seconds = there[0, :2] if len(there) else (row["evaluations"], row["seconds"])
    # Evaluations that `reference` took to the same target.
    takes = other[other[:, 2] <= target_us][0, 0]
    found.append([*key[:3], own[0], own[1], evaluations, seconds, np.log(takes / evaluations),
                  float(len(there) > 0)])
  figures = ["own", "own_seconds", "its", "its_seconds", "log_times", "share"]
  means = pd.DataFrame(found, columns=[*CASE, "method", *figures]).groupby(
      [*CASE, "method"], sort=False).mean()
  # Ratios are averaged by their logarithms.
  means["times"] = np.exp(means.pop("log_times"))
  over = means.groupby("method", sort=False).agg(lambda column: geometric_mean(
      np.maximum(column, _CLOCK_SECONDS)))
  over["share"] = means.groupby("method", sort=False)["share"].mean()
  lines = [[*key, *_reach_cells(line)] for key, line in zip(means.index, means.itertuples())]
  lines += [["geometric mean", "", line.Index, *_reach_cells(line, of_runs=True)]
            for line in over.itertuples()]
  return markdown(pd.DataFrame(lines, columns=[
      *CASE, "method", "evaluations to its own best", "seconds",
      f"evaluations to the best of {reference}", "seconds ", f"{reference} takes, times"]))


def _reach_cells(line: Any, of_runs: bool = False) -> List[str]:
  own = [f"{line.own:,.0f}", f"{line.own_seconds:.1f}"]
  if line.share == 0:
    return [*own, "never", "-", "-"]
  if of_runs and line.share < 1:
    return [*own, f"in {100 * line.share:.0f} % of runs", "-", "-"]
  more, less = ("", "") if line.share == 1 else ("> ", "< ")
  return [*own, f"{more}{line.its:,.0f}", f"{more}{line.its_seconds:.1f}",
          f"{less}{line.times:.2f}"]


def _searches(method: str) -> bool:
  return method == REPLICAS or registry.find(method).kind.searches


def _named(rows: pd.DataFrame) -> pd.DataFrame:
  """Returns the rows of the largest budget, with shorter names of graphs."""
  return final(rows).assign(graph=lambda found: found["graph"].str.replace("zoo:", ""))


def _ratio(value: float) -> str:
  return "-" if np.isnan(value) else f"{value:.3f}"


def _cell(found: pd.DataFrame) -> str:
  """Returns mean and deviation of step times in ms, and the gain over the start if there is one."""
  times = found["step_time_us"] / 1e3
  gain = (1 - found["step_time_us"] / found["start_us"]).mean(skipna=False)
  return (f"{times.mean():.1f}" + (f" ± {times.std():.1f}" if len(times) > 1 else "")
          + ("" if found["fits"].all() else " out of memory")
          + ("" if np.isnan(gain) else f" (-{100 * gain:.1f} %)"))


def write_plots(rows: pd.DataFrame, out: str) -> List[str]:
  """Writes by_evaluations.png and by_seconds.png: the best so far divided by the best known.

  Args:
    rows: of an evaluation.
    out: the evaluation's directory, which has the histories and gets the pictures.

  Returns:
    The paths of the pictures.
  """
  import matplotlib
  from matplotlib.figure import Figure  # no pyplot: no global state, no display

  rows, paths = final(rows), []
  colours: Sequence[str] = matplotlib.rcParamsDefault["axes.prop_cycle"].by_key()["color"]
  for column, (ends, label) in enumerate((
      ("evaluations", "placements evaluated"), ("seconds", "seconds"))):
    figure = Figure(figsize=(8.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for i, (method, curve) in enumerate(_curves(rows, out, column, ends).items()):
      # There are more methods than colours. A line ends in a dot.
      curve.plot(ax=axes, drawstyle="steps-post", label=method, color=colours[i % len(colours)],
                 linestyle=("-", "--", ":")[i // len(colours) % 3], marker="o", markersize=4,
                 markevery=[len(curve) - 1])
    axes.set(xlabel=label, ylabel="best so far over the best known", xscale="log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    paths.append(os.path.join(out, f"by_{ends}.png"))
    figure.savefig(paths[-1], dpi=120)
  return paths


def _curves(rows: pd.DataFrame, out: str, column: int, ends: str) -> Dict[str, pd.Series]:
  """Returns each method's geometric mean over runs of the best so far, at each improvement.

  A method's curve starts where all its runs have a placement, and ends where the last run ended.
  """
  best = rows.groupby(CASE)["step_time_us"].transform("min")
  curves: Dict[str, Any] = {}
  for method, found in rows.groupby("method", sort=False):
    runs = []
    for index, row in zip(found.index, found.to_dict("records")):
      history = read_history(row, out)
      logs = pd.Series(np.log(history[:, 2] / best[index]), index=history[:, column])
      # Improvements at the same time or count: the last one is the best.
      logs = logs[~logs.index.duplicated(keep="last")]
      # The curve of a run continues to its end, at its best value.
      runs.append(logs.reindex(logs.index.union([row[ends]])).ffill())
    # Runs share one axis; ffill repeats each run's last value, dropna removes the start.
    curves[str(method)] = np.exp(pd.concat(runs, axis=1).sort_index().ffill().dropna().mean(axis=1))
  return curves
