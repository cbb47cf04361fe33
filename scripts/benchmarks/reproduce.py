"""Makes the tables of a page of docs/results anew: rows, page and raw data.

  scripts/with_env python scripts/benchmarks/reproduce.py --page=placements

Each table of `PAGES` stands in its page between `<!-- table: NAME -->` and `<!-- end -->`; rows of
all tables of a page are written to docs/results/data/PAGE.csv. Rows so far are kept in OUT/PAGE, so
that the same command continues after an interruption; remove this folder to make a page anew.
`foreign_graphs` reads what foreign_graphs.py wrote to runs/foreign_graphs (--foreign).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import benchmark_large
import fit_presets
import numpy as np
import pandas as pd
from absl import flags

import gpu_kernels
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import PlacetoError
from placeto_tf.evaluation import EvaluationConfig, evaluate, tables
from placeto_tf.evaluation.evaluate import read_history
from placeto_tf.evaluation.evaluation_config import REPLICAS
from placeto_tf.evaluation.tables import CASE, final, geometric_mean, markdown
from placeto_tf.problem.budget import Budget
from placeto_tf.programs import entry_point, shared_flags
from placeto_tf.replication import ReplicaSource, replicated_costs
from placeto_tf.search import table_wise

FLAGS = flags.FLAGS
flags.DEFINE_string("page", None, "Name of the page.", required=True)
flags.DEFINE_string("out", "runs/reproduce", "Directory of the rows so far.")
flags.DEFINE_string("foreign", "runs/foreign_graphs", "Folder of the graphs of foreign_graphs.py.")

Make = Callable[[str], pd.DataFrame]  # from a directory of rows so far, to all rows
Text = Callable[[pd.DataFrame, str], str]  # from rows and their directory, to Markdown
ROOT = pathlib.Path(__file__).resolve().parents[2]
_DOCS = ROOT / "docs" / "results"
KNOWN = ("single", "expert", "metis")
RIVALS = ("placeto", "placeto_uniform", "annealing", "local_search")
ZOO = tuple(f"zoo:{name}" for name in (
    "amoebanet", "bert", "enas_conv", "enas_recurrent", "inception_v3"))
NAMES = {"single": "one device", "metis": "METIS", "placeto_uniform": "uniform moves"}


def evaluated(replicas: Any = 1, **config: Any) -> Make:
  """Returns a function that makes rows by `evaluate`. Args: replicas, **config: of it."""
  def make(out: str) -> pd.DataFrame:
    given = dict(config, graphs=shared_flags.expand_globs(
        [each.replace("FOREIGN", FLAGS.foreign) for each in config["graphs"]]))
    return evaluate(EvaluationConfig(**given, replicas=replicas, check_replicas=False), out,
                    progress=shared_flags.show_row)

  return make


def each_of(jobs: Callable[[], Sequence[Mapping[str, Any]]], run: Callable[..., Any]) -> Make:
  """Returns a function that makes a row for each job, which are the arguments of `run`."""
  def make(out: str) -> pd.DataFrame:
    os.makedirs(out, exist_ok=True)
    path, wanted = pathlib.Path(out, "rows.jsonl"), jobs()
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for job in wanted:
      if not any(job.items() <= row.items() for row in done):
        done.append({**job, **run(**job)})
        with open(path, "a", encoding="utf-8") as file:
          file.write(json.dumps(done[-1]) + "\n")
        print(f"[{len(done)}/{len(wanted)}] {done[-1]}", file=sys.stderr, flush=True)
    return pd.DataFrame(done)

  return make


def by_budget(rows: pd.DataFrame, out: str, groups: Callable[[pd.DataFrame], Any]) -> str:
  """Returns a line for each group and method, a column for each number of evaluations.

  Args:
    rows: with "ratio", or of `evaluate`.
    out: the directory of the rows.
    groups: returns the group of each row.

  Returns:
    Geometric means over graphs, with deviations over seeds, the best of each column in bold; and a
    line of by how much `placeto` is below the best of its rivals.
  """
  found = rows.copy()
  if "ratio" not in rows:  # the last objective over the first, which is the start's
    histories = [read_history(row, out)[:, 2] for row in rows.to_dict("records")]
    found["ratio"] = [each[-1] / each[0] for each in histories]
  both = [found.assign(group=groups(found))]
  several = both[0]["group"].nunique() > 1
  if several:
    both.append(found.assign(group="all"))
  # A mean for each seed, then its mean and deviation over seeds.
  seeds = pd.concat(both).groupby(["group", "method", "budget", "seed"], sort=False)["ratio"].agg(
      geometric_mean).groupby(["group", "method", "budget"], sort=False)
  means, widths = seeds.mean().unstack(), seeds.std().unstack()
  lines = []
  for group, here in means.groupby(level="group", sort=False):
    for key, line in here.iterrows():
      cells = {}
      for budget, mean in line.items():
        width = widths.loc[key, budget]
        text = f"{mean:.3f}" + ("" if np.isnan(width) else f" ± {width:.3f}")
        # Equal in the digits that are shown is as good.
        best = round(mean, 3) == round(here[budget].min(), 3)
        cells[f"{budget:,}"] = f"**{text}**" if best else text
      lines.append({"group": group if key == here.index[0] else "",
                    "method": _named(key[1]), **cells})
    gains = 100 * (1 - here.loc[(group, "placeto")] / here.drop(index=(group, "placeto")).min())
    lines.append({"group": "", "method": "`placeto` below the best rival by", **{
        f"{budget:,}": f"{round(gain, 1) + 0.0:.1f} %" for budget, gain in gains.items()}})
  table = pd.DataFrame(lines)
  return markdown(table if several else table.drop(columns="group"))


def _named(method: str) -> str:
  return NAMES.get(method, f"`{method}`" if method in ("placeto", "auto", "heft") else
                   method.replace("_", " "))


def _spec(graph: str) -> str:
  return re.sub(r"^zoo:|.*/|\.meta$", "", graph)


def _wide(rows: pd.DataFrame) -> pd.DataFrame:
  """Returns [graph and cluster, method] step times in us of the largest budget."""
  return final(rows).pivot_table("step_time_us", CASE, "method", sort=False)


def zoo_means(rows: pd.DataFrame, _: str) -> str:
  """Returns, for each cluster, methods over `auto`, and `auto` over the bound."""
  wide = _wide(rows)
  wide["bound"] = rows.groupby(CASE)["lower_bound_us"].first()
  ratios = wide.drop(columns=["auto", "bound"]).div(wide["auto"], axis=0).rename(columns=_named)
  ratios["`auto` over the bound"] = wide["auto"] / wide["bound"]
  found = ratios.groupby("cluster", sort=False).agg(geometric_mean)
  found.loc["all"] = ratios.agg(geometric_mean)
  return markdown(found.map("{:.3f}".format).reset_index())


def zoo_rows(rows: pd.DataFrame, _: str) -> str:
  """Returns, for each graph, the gain of `auto` over one device and its distance to the bound."""
  wide = _wide(rows)
  bound = rows.groupby(CASE)["lower_bound_us"].first()
  cells = ((wide["auto"] / 1e3).map("{:,.1f} ms, ".format)
           + (wide["single"] / wide["auto"]).map("{:.2f}, ".format)
           + (wide["auto"] / bound).map("{:.2f}".format))
  found = cells.unstack("cluster", sort=False).reset_index()
  return markdown(found.assign(graph=found["graph"].map(_spec)))


def with_replicas(rows: pd.DataFrame, out: str) -> str:
  """Returns a line for each graph and cluster: methods, data parallelism, replicas; then means."""
  methods = [name for name in dict.fromkeys(rows["method"]) if name != REPLICAS]
  lines, ratios = [], []
  for row in rows[rows["method"] == REPLICAS].to_dict("records"):
    name = os.path.join(out, "reports", os.path.basename(row["placement"]))
    report = json.loads(pathlib.Path(name).read_text(encoding="utf-8"))
    here = rows[(rows["graph"] == row["graph"]) & (rows["cluster"] == row["cluster"])]
    here = here.set_index("method")
    us = {each: here.loc[each, "step_time_us"] if here.loc[each, "fits"] else np.nan
          for each in methods}
    one = report["replicas"]["rows"]["1"]["global_batch"]
    for key, title in (("data_parallel", "data parallelism, one process"),
                       ("process_parallel", "a process each")):
      found = report["replicas"][key]
      # For as many examples as a step of one replica has, as all figures of the line.
      us[title] = found["step_time_us"] * (one or 1) / (found["global_batch"] or 1) if (
          found and found["fits"]) else np.nan
    strategy = (report["replicas"]["placed"] or {"strategy": "1"})["strategy"]
    ratios.append({key: value / row["step_time_us"] for key, value in us.items()})
    lines.append({
        "graph": _spec(row["graph"]), "cluster": row["cluster"],
        **{_named(key): "-" if np.isnan(value) else f"{value / 1e3:,.1f}"
           for key, value in us.items()},
        "`--replicas=auto`": f"{row['step_time_us'] / 1e3:,.1f}", "its replicas": strategy,
        "its bound": f"{row['lower_bound_us'] / 1e3:,.1f}"})
  means = pd.DataFrame(ratios).agg(geometric_mean)
  lines.append({"graph": "over `--replicas=auto`, geometric mean", "cluster": "", **{
      _named(key): f"{value:.2f}" for key, value in means.items()}, "`--replicas=auto`": "1",
      "its replicas": "", "its bound": ""})
  return markdown(pd.DataFrame(lines))


def optimum(seed: int, graph: str, cluster: str = "") -> Dict[str, Any]:
  """Tries all placements of a small problem; returns the best, the bound, and that of `auto`.

  Args:
    seed: of a random problem.
    graph, cluster: a step whose ops move in 14 groups; "random" is a random problem.
  """
  from placeto_tf.environments.problems import named_problems
  from placeto_tf.search.lower_bounds import lower_bound_us

  sys.path.insert(0, str(ROOT / "tests" / "support"))
  import enumerated_problems

  if graph != "random":
    (_, whole), = named_problems([graph], [cluster], max_groups=(14,))
    problem = type(whole)(  # the bound knows of the groups
        dataclasses.replace(whole.graph, colocation=whole.grouping.group_of_op), whole.costs,
        whole.cluster, whole.grouping, whole.allowed_ops)
  else:
    try:
      problem = enumerated_problems.every_kind_of_problem(seed)
    except PlacetoError:  # a set of ops has no common device
      return {}
  best_us = enumerated_problems.least_us(problem)
  if best_us is None or not 0 < best_us < np.inf:  # too many placements, or nothing fits
    return {}
  return {"best_us": float(best_us), "bound_us": float(lower_bound_us(problem)),
          "auto_us": float(_log(problem, "auto", 300, 0).best_objective_us)}


def _log(problem: Any, method: str, budget: int, seed: int) -> Any:
  """Returns the search log of a method."""
  from placeto_tf.placing import registry, running

  searched = problem.renewed()
  running.run(searched, registry.find(method), Budget(budget), seed)
  return searched.search_log


def optima(rows: pd.DataFrame, _: str) -> str:
  """Returns the counts of `optimum`, a line for random problems and for each graph."""
  equal = 1 + 1e-9
  return markdown(pd.DataFrame([{
      "of": name, "problems": len(each), "`auto` finds the optimum": (
          each["auto_us"] <= each["best_us"] * equal).sum(),
      "the largest excess of `auto`": f"{(each['auto_us'] / each['best_us']).max() - 1:.1%}",
      "bound equal to the optimum": (each["bound_us"] * equal >= each["best_us"]).sum(),
      "bound above it": (each["bound_us"] > each["best_us"] * equal).sum(),
      "optimum over bound, geometric mean": f"""{geometric_mean(
          each['best_us'] / each['bound_us'].where(each['bound_us'] > 0)):.3f}"""}
      for name, each in rows.dropna(subset=["best_us"]).groupby("graph", sort=False)]))


def made(problem: str, method: str, budget: int, seed: int) -> Dict[str, Any]:
  """Returns the objective of a method over the best of one device, expert and METIS."""
  fresh, start_us = _problem(problem)
  log = _log(fresh, method, budget, seed)
  return {"ratio": log.best_objective_us / start_us, "fits": bool(log.best_fits)}


@functools.lru_cache(1)
def _problem(spec: str) -> Tuple[Any, float]:
  from placeto_tf.environments import made_problems
  from placeto_tf.environments.problems import with_starts

  problem = made_problems.make(spec)
  problem.simulator.num_threads = 1
  known = with_starts(problem.renewed()).starts[:1]
  return problem, float(problem.renewed().evaluate(known).objective_us[0])


def dealt(graph: str, cluster: str, method: str) -> Dict[str, Any]:
  """Returns the step with a replica on each device, and tables where a rule or a plan puts them."""
  from placeto_tf.placing import config, registry, running

  devices = Cluster.parse(cluster)
  made_of = ReplicaSource(graph).replicas(int(cluster.partition(":")[2]))
  problem = running.problem_of(made_of.graph, devices, config.PlacingConfig(), replicated_costs(
      made_of, devices), replicated=made_of)
  rule = method.partition(",")[0]
  if rule in _GREEDY:
    running.run(problem, registry.find(rule), Budget(1))
  else:
    plans = json.loads((_DOCS / "data/torchrec_plans.json").read_text())
    table_wise.place_tables(problem, deal=lambda *_: np.array(plans[f"{graph}, {cluster}"]))
  return {"step_time_us": problem.search_log.best_objective_us,
          "fits": bool(problem.search_log.best_fits)}


def errors_of_fit(_: str) -> pd.DataFrame:
  """Returns simulated over published speed of each step, by what the fit has not seen."""
  return pd.concat(fit_presets.compared(_records())[2:], ignore_index=True)


def fit_table(rows: pd.DataFrame, _: str) -> str:
  """Returns a line for each step, and the share within 25 % and median error of each column."""
  columns = [each for each in rows if each.startswith(("without", "fitted"))]
  found = rows[rows["precision"] != "mixed"].drop(columns=["precision", "mixed"])
  errors = (found[columns] - 1).abs()
  said = ", ".join(f"{column}: {(error <= 0.25).sum()} of {len(error)}, {error.median():.0%}"
                   for column, error in errors.items())
  mixed = (rows.loc[rows["precision"] == "mixed", "mixed"] - 1).abs()
  return (f"{markdown(found.round(2))}\n\nWithin 25 %, and median error: {said}. Half "
          "precision, which no step of the fit has: "
          f"{(mixed <= 0.25).sum()} of {len(mixed)}, {mixed.median():.0%}.")


def _records() -> pd.DataFrame:
  return pd.read_csv(_DOCS / "data/published.csv", keep_default_na=False)


def scaling_jobs() -> List[Dict[str, Any]]:
  """Returns the jobs of `scaled`: one GPU, and as many as were measured."""
  found = fit_presets.scaling(_records())[["card", "model", "size", "gpus"]].astype({"size": int})
  return pd.concat([found.assign(gpus=1), found]).drop_duplicates().to_dict("records")


def scaling_table(rows: pd.DataFrame, _: str) -> str:
  """Returns simulated and measured speed over that of one GPU, and how many are within 10 %."""
  key = ["card", "model", "size"]
  us = rows.pivot_table("us", key, "gpus")
  simulated = us.rdiv(us[1], axis=0).mul(us.columns.to_numpy()).stack().rename("simulated")
  found = fit_presets.scaling(_records()).astype({"size": int}).join(simulated, on=[*key, "gpus"])
  found["within"] = (found["simulated"] / found["measured"] - 1).abs() <= 0.1
  cells = (found["simulated"].map("{:.2f}, ".format) + found["measured"].map("{:.2f}".format)
           + np.where(found["within"], "", " (!)"))
  wide = found.assign(cell=cells).pivot(index=[*key, "note"], columns="gpus", values="cell")
  counts = found.groupby(["gpus"])["within"].agg(["sum", "size"])
  said = ", ".join(f"{line['sum']} of {line['size']} on {gpus} GPUs"
                   for gpus, line in counts.iterrows())
  bridged = found[found["card"] + found["note"] != "rtx3090TF 2.4.1"]["within"]
  titles: Dict[Any, str] = {n: f"{n} GPUs: simulated, measured" for n in (2, 4, 8)}
  titles["size"] = "batch of a GPU"
  table = markdown(wide.fillna("").reset_index().rename(columns=titles))
  return (f"{table}\n\nWithin 10 %: {found['within'].sum()} of {len(found)} ({said}); without the "
          f"host of RTX 3090s whose GPUs cannot reach one another (TF 2.4.1), {bridged.sum()} of "
          f"{len(bridged)}. (!) marks the others.")


def kernels(_: str) -> pd.DataFrame:
  """Returns the kernels that were timed on an H100, with the preset's estimates."""
  from placeto_tf.ops import rule_of

  found = gpu_kernels.compare(json.loads((_DOCS / "data/h100_kernels.json").read_text()), "h100")
  return found.assign(kind=[rule_of(op).kind or "element-wise" for op in found["op"]])


def kernel_table(rows: pd.DataFrame, _: str) -> str:
  """Returns a line for each kind of op: timings, median ratio, median error, share within 25 %."""
  both = pd.concat([rows.sort_values("kind"), rows.assign(kind="all")])
  ratio = both.groupby("kind", sort=False)["ratio"]
  error = (both["ratio"] - 1).abs().groupby(both["kind"], sort=False)
  return markdown(pd.DataFrame({
      "timings": ratio.size(), "estimated over measured, median": ratio.median().round(2),
      "median error": error.median().map("{:.0%}".format),
      "within 25 %": error.agg(lambda each: (each <= 0.25).mean()).map("{:.0%}".format)}
      ).rename_axis("op").reset_index())


def whole_steps(_: str) -> pd.DataFrame:
  """Returns whole steps that were measured on an H100, with the preset's estimates."""
  measured = json.loads((_DOCS / "data/h100_steps.json").read_text())
  return gpu_kernels.whole_steps(measured["steps"], "h100")


def waiting(graph: str) -> Dict[str, Any]:
  """Returns processor seconds of the whole command on a graph. Args: see benchmark_large.py."""
  with tempfile.TemporaryDirectory() as out:
    found = benchmark_large.measured(graph, "k80_placeto:8", 300, out)
  ops, start_us = found["graph"]["ops"], min(
      found["baselines"][name]["step_time_us"] for name in KNOWN)
  return {"ops": f"{ops:,}", "processor s": f"{found['cpu_s']:.0f}",
          "us an op": f"{found['cpu_s'] / ops * 1e6:,.0f}",
          "peak memory, GiB": f"{found['peak_bytes'] / 2**30:.1f}",
          "gain over one device, expert and METIS":
              f"{100 * (1 - found['step_time_us'] / start_us):.1f} %",
          "step over its bound": f"{found['step_time_us'] / found['lower_bound_us']:.2f}"}


def by(groups: Callable[[pd.DataFrame], Any]) -> Text:
  """Returns `by_budget` of these groups."""
  return functools.partial(by_budget, groups=groups)


_HELD_OUT = tuple(f"family:{name}[24:32]" for name in ("ptb", "nmt", "cifar10"))
_SIX = tuple(f"family:{name}[{i}]" for i in (24, 28) for name in ("ptb", "cifar10")) + (
    "family:nmt[26]", "family:nmt[30]")
_GREEDY = tuple(method.name for method in table_wise.METHODS)
_SIZES = [f"zoo:recommender:size={size}:optimizer={optimizer}" for size in ("tiny", "small")
          for optimizer in ("adagrad", "sgd")]
_A100S = ("a100_80gb:4", "a100_80gb:8")
_DEALT = [f"{rule}, N replicas" for rule in (*_GREEDY[:2], "TorchRec's planner")]
_KINDS = ("layers", "products", "tasks", "pipelines", "packed")
_SEARCHED: Dict[str, Any] = dict(methods=RIVALS, start=KNOWN)

# Page -> table -> the function that makes its rows, and those that make its texts.
PAGES: Dict[str, Dict[str, Tuple[Make, Dict[str, Text]]]] = {
    "placements": {
        "zoo": (evaluated(
            graphs=ZOO, clusters=("k80_placeto:4", "v100:8"),
            methods=(*KNOWN, "heft", "auto"), max_evaluations=1000),
            {"zoo": zoo_means, "zoo graphs": zoo_rows}),
        "optimum": (each_of(lambda: [
            *({"seed": i, "graph": "random"} for i in range(50_000, 50_080)),
            *({"seed": 0, "graph": f"zoo:{name}:cells=3", "cluster": cluster} for name in (
                "amoebanet", "enas_conv") for cluster in ("k80_placeto:2", "v100:2"))], optimum),
                    {"optimum": optima}),
        "links": (evaluated(
            graphs=[f"zoo:inception_v3:batch={batch}" for batch in (16, 256)],
            clusters=("a100_pcie:4",),
            methods=("single", "auto"), max_evaluations=300), {"links": zoo_rows})},
    "replicas": {
        "zoo": (evaluated(
            graphs=["zoo:bert:batch=32", "zoo:inception_v3", "zoo:rnnlm"],
            clusters=("k80_placeto:4", "a100:4"), methods=("single", "auto"), max_evaluations=30,
            replicas="auto"),
            {"zoo": with_replicas}),
        "weak": (evaluated(
            graphs=["zoo:inception_v3"], clusters=("a100:1+v100:3",),
            methods=("single", "auto"), max_evaluations=30, replicas="auto"),
            {"weak": with_replicas})},
    "placeto": {
        "held out": (evaluated(
            graphs=_HELD_OUT, clusters=("k80_placeto:4",), max_evaluations=1000,
            budgets=(10, 30, 100, 300), seeds=(0, 1, 2), **_SEARCHED),
            {"held out": by(lambda rows: rows["graph"].str.extract(r":(\w+)", expand=False))}),
        "clusters": (evaluated(
            graphs=_SIX, clusters=("h100:4", "k80_placeto:2+cpu:2", "k80_placeto:12"),
            max_evaluations=100, budgets=(30,), seeds=(0, 1, 2), **_SEARCHED),
            {"clusters": by(lambda rows: rows["cluster"])}),
        "made": (each_of(
            lambda: [{"problem": f"made:{kind}[{i}]", "method": method, "budget": budget,
                      "seed": seed} for kind in _KINDS
                     for i in range(1000, 1010) for method in RIVALS
                     for budget in (30, 100, 300, 1000) for seed in (0, 1, 2)], made),
            {"made": by(lambda rows: rows["problem"].str.extract(r":(\w+)", expand=False))})},
    "foreign_graphs": {
        "foreign": (evaluated(
            graphs=("FOREIGN/*.meta",), clusters=("k80_placeto:4",), max_evaluations=1000,
            budgets=(30, 100, 300), seeds=(0, 1, 2), **_SEARCHED),
            {"foreign": by(lambda rows: rows["cluster"]),
             "foreign graphs": by(lambda rows: rows["graph"].map(_spec))})},
    "recommenders": {
        "sizes": (lambda out: pd.concat([evaluated(
            graphs=_SIZES, clusters=_A100S, methods=("single", *_GREEDY), max_evaluations=1000,
            replicas="auto")(out), each_of(lambda: [
                {"graph": graph, "cluster": cluster, "method": method} for graph in _SIZES
                for cluster in _A100S for method in _DEALT], dealt)(out)]),
                  {"sizes": with_replicas}),
        "sampled": (evaluated(
            graphs=("family:recommender[0:10]",), clusters=("v100:8",), start=(*KNOWN, *_GREEDY),
            methods=("placeto", "annealing", "local_search", "auto"), max_evaluations=1000,
            budgets=(30, 100, 300), seeds=(0, 1, 2)),
                    {"sampled": by(lambda rows: rows["cluster"])})},
    "predictions": {
        "fit": (errors_of_fit, {"fit": fit_table}),
        "scaling": (each_of(
            scaling_jobs, lambda **job: {"us": fit_presets.data_parallel_us(**job)}),
            {"scaling": scaling_table}),
        "kernels": (kernels, {"kernels": kernel_table}),
        "steps": (whole_steps, {"steps": lambda rows, _: markdown(rows)})},
    "learned_rivals": {
        "learned": (evaluated(
            graphs=("zoo:inception_v3", "family:nmt[24]"), clusters=("k80_placeto:4",),
            methods=(*KNOWN, "rnn", "hierarchical", "gdp", "placeto"), max_evaluations=800,
            seeds=(0, 1)), {"learned": lambda rows, out: "\n\n".join(
                (tables.step_time_table(rows), tables.reach_table(
                    rows[~rows["method"].isin(KNOWN)], out, "rnn")))})},
    "waiting": {
        "waiting": (each_of(lambda: [{"graph": each} for each in (
            "zoo:rnnlm", "zoo:gnmt:layers=8", "1000000")],
            waiting), {"waiting": lambda rows, _: markdown(rows)})}}


def main() -> None:
  """Makes the tables of the page."""
  from placeto_tf.files import outputs

  if FLAGS.page not in PAGES:
    raise PlacetoError(f"--page={FLAGS.page} has no program; expected one of {', '.join(PAGES)}")
  entry_point.import_tensorflow_quietly()
  folder, path = pathlib.Path(FLAGS.out, FLAGS.page), _DOCS / f"{FLAGS.page}.md"
  os.makedirs(folder, exist_ok=True)
  kept = folder / "made.json"
  if not kept.exists():  # all rows are of one commit
    kept.write_text(json.dumps({"seconds": 0.0, "commit": subprocess.check_output(
        ["git", "log", "-1", "--format=%h", "--", "placeto_tf"], cwd=ROOT, text=True).strip()}))
  how = json.loads(kept.read_text())
  page, raw, before = path.read_text(encoding="utf-8"), [], how["seconds"]
  for name, (make, texts) in PAGES[FLAGS.page].items():
    out = str(folder / name.replace(" ", "_"))
    try:
      rows = make(out)
    finally:  # of an interrupted run, too
      how["seconds"] = before + sum(used.ru_utime + used.ru_stime for used in map(
          resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
      kept.write_text(json.dumps(how))
    raw.append(rows.drop(columns="placement", errors="ignore").assign(table=name))
    for title, text in texts.items():
      page = with_table(page, title, re.sub(r"(?<=\d)%", " %", text(rows, out)))
  page = with_table(page, "made by", f"All tables above are of commit `{how['commit']}`, made in "
                    f"{how['seconds'] / 60:.0f} minutes of a processor by this command:\n\n```sh\n"
                    "scripts/with_env python scripts/benchmarks/reproduce.py "
                    f"--page={FLAGS.page}\n```")
  outputs.write(str(_DOCS / "data" / f"{FLAGS.page}.csv"), pd.concat(raw).to_csv(
      index=False, lineterminator="\n", float_format="%.7g").encode("utf-8"))
  outputs.write(str(path), page.encode("utf-8"))
  print(f"Done: {path}.")


def with_table(page: str, name: str, text: str) -> str:
  """Returns the page with a table between its markers. Args: page, name, text: of the table.

  Raises:
    PlacetoError: the page lacks the markers.
  """
  before, begin, rest = page.partition(f"<!-- table: {name} -->")
  _, end, after = rest.partition("<!-- end -->")
  if not begin or not end:
    raise PlacetoError(f"the page has no place for the table {name!r}; write "
                       f"<!-- table: {name} --> and <!-- end --> into it")
  return f"{before}{begin}\n\n{text}\n\n{end}{after}"


if __name__ == "__main__":
  entry_point.run_program(main)
