"""Flags that the programs share, and the values read from them."""

from __future__ import annotations

import glob
import math
import re
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from absl import flags

from placeto_tf.clusters.presets import PRESETS
from placeto_tf.errors import PlacetoError
from placeto_tf.files import user_files

FLAGS = flags.FLAGS
_MOST_ELEMENTS = 2**48  # of a feed


def define_graph_flags() -> None:
  """Defines --graph, what its ops cost, and the flags that say how it is read."""
  flags.DEFINE_string(
      "graph", None,
      "Graph to place: a file (.pb, .pbtxt, .meta, .meta.pbtxt, .cost_graph.pb, "
      ".cost_graph.pbtxt, .keras, .h5), a SavedModel directory, zoo:NAME[:key=value...] or "
      "family:NAME[index].",
      required=True)
  flags.DEFINE_string(
      "costs", "grappler", "What ops cost: 'grappler', or a file of measured costs "
      "(OpPerformanceList, RunMetadata, StepStats or CostGraphDef).")
  define_reading_flags()


def define_reading_flags() -> None:
  """Defines the flags that say how graphs are read."""
  flags.DEFINE_list("fetches", None, "Ops or tensors that a step runs; default: the train op or "
                    "the sinks of the graph.")
  flags.DEFINE_list("feeds", None, "Tensors that are fed; default: the placeholders.")
  flags.DEFINE_enum(
      "format", None, ["graph_def", "meta_graph_def", "cost_graph_def", "saved_model"],
      "Format of the file; default: by its suffix, and a directory is a SavedModel.")
  flags.DEFINE_string("signature", None, "Signature of a SavedModel that a step runs; default: "
                      "serving_default, or the only one.")
  flags.DEFINE_list("tags", None, "Tags of a SavedModel's graph; default: serve, or those of the "
                    "only one.")
  flags.DEFINE_boolean("trusted", False, "Run code that a Keras file (.keras, .h5) holds in Lambda "
                       "layers, to load it.")
  flags.DEFINE_integer("trip_count", None, "How often loops go round; default: inferred where the "
                       "bound is known before the run, else 10.", lower_bound=0)
  flags.DEFINE_bool("split_loops", False, "Whether the ops of a loop may be on several devices.")
  flags.DEFINE_integer("batch_size", None, "Size of the unknown first dimensions.", lower_bound=1,
                       upper_bound=2**31 - 1)
  flags.DEFINE_multi_string("feed_shapes", [], "Shape of a feed, as name:32x128 or "
                            "name:scalar; repeatable.")


def define_any_graph_flag() -> None:
  """Defines --any_graph."""
  flags.DEFINE_boolean(
      "any_graph", False, "Whether a placement may be of another graph, of other shapes say, as "
      "long as it has a device for each op.")


def define_cluster_flag() -> None:
  """Defines --cluster."""
  flags.DEFINE_string(
      "cluster", None, "Cluster: preset:count[+preset:count], such as v100:4, or v100:4x2 for 4 on "
      "each of 2 hosts; a JSON file; or 'local', the devices found here. Presets: "
      f"{', '.join(PRESETS)}; see docs/cluster_json.md.")
  flags.register_validator(
      "cluster", lambda value: value is not None, message="give --cluster, such as "
      "--cluster=v100:4, or --cluster=local for the devices of this machine")


def define_budget_flags(max_seconds: Optional[float]) -> None:
  """Defines --max_seconds and --max_evaluations."""
  flags.DEFINE_float(
      "max_seconds", None, "Seconds to search, loading not counted"
      + (f"; {max_seconds:g} if no other limit is given." if max_seconds else "."),
      lower_bound=0, upper_bound=1e9)
  flags.DEFINE_integer(
      "max_evaluations", None, "Placements to evaluate, baselines included.", lower_bound=0,
      upper_bound=10**12)


def define_stop_within_flag() -> None:
  """Defines --stop_within."""
  flags.DEFINE_float(
      "stop_within", None, "The search ends early within this share of a lower bound of the step "
      "time, or once twice the time gained less than it; 0: neither. 0.01, but with "
      "--max_evaluations 0.", lower_bound=0, upper_bound=1)


def define_runs_flag(default: str) -> None:
  """Defines --independent_runs; `default` describes its default in the help."""
  flags.DEFINE_integer(
      "independent_runs", None, "Independent runs of each search side by side, on a thread each; "
      f"the best placements are kept; {default}.", lower_bound=1)


def define_import_flag() -> None:
  """Defines --import."""
  flags.DEFINE_multi_string(
      "import", [], "Module of a policy of your own, such as my_package.my_policy; repeatable. Its "
      "methods and its training are then known as those of the package are.")


def import_policies() -> None:
  """Imports the modules of --import. Raises: PlacetoError: one of them is no policy's."""
  from placeto_tf import policies  # not needed by every program

  for module in flags.FLAGS["import"].value:
    policies.use(module)


def define_ray_flag() -> None:
  """Defines --ray."""
  flags.DEFINE_string(
      "ray", None, "Where to work beside this process, on Ray (pip install 'placeto_tf[ray]'): "
      "local, the cores of this machine; auto, the cluster that this machine is part of; host:port "
      "or ray://host:port of another one.")


def define_replicas_flags() -> None:
  """Defines --replicas, --mirrored_variables, --batch_norm and --check_replicas."""
  flags.DEFINE_string("replicas", "1", "Replicas of the graph that train together: a number; "
                      "groups and micro-batches of a pipeline, such as '1 x 8'; or auto for what "
                      "trains most examples a second.")
  flags.DEFINE_enum(
      "mirrored_variables", "auto", ["auto", "yes", "no"], "Whether each replica has variables and "
      "an optimizer of its own, which stay equal, instead of sharing the graph's; auto: what is "
      "faster.")
  flags.DEFINE_enum(
      "batch_norm", "replica", ["replica", "synchronized"], "Whether each replica normalizes by "
      "its own statistics in batch normalization, or all by those of the whole batch.")
  flags.DEFINE_enum(
      "check_replicas", "yes", ["yes", "no"], "Whether the graph and its replicas are trained side "
      "by side for a few steps on this machine, before their placement is written.")


def define_look_flag() -> None:
  """Defines --look."""
  flags.DEFINE_enum(
      "look", "auto", ["auto", "yes", "no"], "Whether a step is run once on this machine's CPU, "
      "in a process of its own with made-up feeds, to see shapes and rounds of loops that nothing "
      "else tells; auto: a small step without effects outside of it. For a graph of somebody whom "
      "you do not trust, say no.")


def mirrored_variables() -> Optional[bool]:
  """Returns the value of --mirrored_variables; None for auto."""
  return {"auto": None, "yes": True, "no": False}[FLAGS.mirrored_variables]


def replicas() -> Union[int, str]:
  """Returns the value of --replicas.

  Raises:
    PlacetoError: neither auto, nor a whole number of at least 1, nor a form of a pipeline.
  """
  from placeto_tf.errors import PlacetoError
  from placeto_tf.replication.replicated_graph import pipeline_strategy

  text = FLAGS.replicas
  # auto, groups x micro-batches, or a whole number.
  if text == "auto" or pipeline_strategy(text):
    return text
  if not (text.isascii() and text.isdecimal() and int(text) >= 1):
    raise PlacetoError(f"--replicas is {text!r}; expected auto, a whole number of at least 1, or "
                       "groups x micro-batches such as '2 x 8'")
  return int(text)


def define_runtime_flags() -> None:
  """Defines --workers and --device_map: where placements are really run."""
  flags.DEFINE_list(
      "workers", [], "host:port of workers that already run, in the order of their tasks, or "
      "local:N to start N on this machine; default: N as the cluster's device names say, or none.")
  flags.DEFINE_list(
      "device_map", [], "/DEVICE=/DEVICE,...: which real device stands for which of the cluster, "
      "where names differ.")


def runtime(cluster: Any) -> Tuple[Any, Optional[Dict[str, str]]]:
  """Returns the runtime of --workers, not yet started, and --device_map."""
  from placeto_tf.runtime import workers

  return workers.make_runtime(cluster, FLAGS.workers), device_map() or None


def device_map() -> Dict[str, str]:
  """Returns --device_map, {} where it is not given."""
  from placeto_tf.runtime import device_maps

  return device_maps.parse_device_map(",".join(FLAGS.device_map)) if FLAGS.device_map else {}


def graph_options() -> Dict[str, Any]:
  """Returns the keyword arguments of `load_graph` from the graph flags."""
  return dict(
      fetches=FLAGS.fetches, feeds=FLAGS.feeds, format=FLAGS.format, batch_size=FLAGS.batch_size,
      feed_shapes=parse_feed_shapes(FLAGS.feed_shapes),
      signature=FLAGS.signature, tags=FLAGS.tags, trip_count=FLAGS.trip_count,
      split_loops=FLAGS.split_loops, trusted=FLAGS.trusted)


def show_row(done: int, total: int, row: Dict[str, Any]) -> None:
  """Prints the progress of an evaluation to stderr, a line for each of its rows.

  Args:
    done, total: numbers of rows.
    row: the last one, by the columns of results.csv.
  """
  budget = f" budget {row['budget']}" if row["budget"] else ""
  print(f"[{done}/{total}] {row['graph']} {row['cluster']} {row['method']} seed {row['seed']}"
        f"{budget}: "
        f"{row['step_time_us'] / 1e3:.1f} ms, {row['evaluations']} evaluations, "
        f"{row['seconds']:.1f} s", file=sys.stderr, flush=True)


def whole_numbers(name: str) -> Tuple[int, ...]:
  """Returns the numbers of a list flag. Raises: PlacetoError where it is anything else."""
  texts: List[str] = FLAGS[name].value or []
  try:
    found = tuple(int(text) for text in texts)
  except ValueError:
    # Refused below, with the text that was given.
    found = (-1,)
  if not all(0 <= number < 2**32 for number in found):
    raise PlacetoError(f"--{name}={','.join(texts):.60} are not whole numbers from 0 to 2^32 - 1")
  return found


def expand_globs(texts: Sequence[str]) -> Tuple[str, ...]:
  """Replaces every glob by the files that it matches, sorted, and families by members."""
  expanded: List[str] = []
  for text in texts:
    if text.startswith("family:"):
      from placeto_tf.zoo import expand  # not needed by every program

      expanded += expand(text)
      continue
    # Brackets of a spec are no glob.
    if text.startswith(("zoo:", "made:")) or not glob.has_magic(text):
      expanded.append(text)
      continue
    found = sorted(glob.glob(text))
    if not found:
      raise PlacetoError(f"{text} matches no file; give a glob that does, or zoo:NAME")
    expanded += found
  return tuple(expanded)


def parse_feed_shapes(texts: Sequence[str]) -> Dict[str, Tuple[int, ...]]:
  """Reads {name: shape} from "name:32x128"; a tensor's own ":0" may precede the shape."""
  shapes = {}
  for text in texts:
    # name, then 32x128 or scalar; the name may hold colons.
    match = re.fullmatch(r"(.+):(\d+(?:x\d+)*|scalar)", text)
    if not match:
      raise PlacetoError(f"--feed_shapes={text} was not understood; expected name:32x128, or "
                         "name:scalar")
    name, dims = match.groups()
    # 20 digits are enough to be refused below, and quick to convert.
    shape = () if dims == "scalar" else tuple(int(d[:20]) for d in dims.split("x"))
    # Zero elements of one dimension do not hide a huge one.
    if math.prod(max(size, 1) for size in shape) > _MOST_ELEMENTS:
      raise PlacetoError(
          f"--feed_shapes={text:.60} has more than {_MOST_ELEMENTS:,} elements; give a smaller one")
    shapes[name] = shape
  return shapes


def allowed_sets(path: Optional[str]) -> Dict[str, List[str]]:
  """Reads the regex -> devices of --allowed, a JSON file; none without one.

  Raises:
    PlacetoError: the file cannot be read, or is no JSON object.
  """
  if path is None:
    return {}
  remedy = 'expected a JSON object such as {"embedding/.*": ["/GPU:0", "/CPU:0"]}'
  text = user_files.read_text(
      path, what="the file of --allowed", remedy=remedy, error_type=PlacetoError,
      most_bytes=user_files.MOST_JSON_BYTES)
  try:
    found = user_files.parse_json(text)
  except ValueError as error:
    raise PlacetoError(f"--allowed={path} is not JSON ({error}); {remedy}") from None
  # Regexes and devices are checked where they are used.
  if not isinstance(found, dict):
    raise PlacetoError(f"--allowed={path} holds {found!r:.60}; {remedy}")
  return found


def parse_pins(texts: Sequence[str]) -> List[Tuple[str, str]]:
  """Reads (regex, device) pairs from "REGEX:DEVICE"; the device begins at the last ":/"."""
  pins = []
  for text in texts:
    # From the right: the regex may hold colons and slashes.
    regex, separator, device = text.rpartition(":/")
    if not separator or not regex:
      raise PlacetoError(f"--pin={text} was not understood; expected REGEX:DEVICE, such as "
                         "'embedding/.*:/CPU:0'")
    pins.append((regex, "/" + device))
  return pins
