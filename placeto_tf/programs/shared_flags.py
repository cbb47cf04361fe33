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
  """Defines --graph, --cost_model and the flags of reading graphs."""
  flags.DEFINE_string(
      "graph", None,
      "Graph to place: a file (.pb, .pbtxt, .meta, .meta.pbtxt, .cost_graph.pb, "
      ".cost_graph.pbtxt, .keras, .h5), a SavedModel directory, zoo:NAME[:key=value...] or "
      "family:NAME[index].",
      required=True)
  flags.DEFINE_string("cost_model", "grappler", "Source of the ops' costs: 'grappler' (estimates), "
                      "or an OpPerformanceList file of measured costs.")
  define_reading_flags()


def define_reading_flags() -> None:
  """Defines the flags of reading graphs: fetches, feeds, format, batch size and loops."""
  flags.DEFINE_list("fetches", None, "Ops or tensors that a step computes; default: the train op, "
                    "else all ops without consumers.")
  flags.DEFINE_list("feeds", None, "Tensors that are fed; default: the placeholders.")
  flags.DEFINE_enum(
      "format", None, ["graph_def", "meta_graph_def", "cost_graph_def", "saved_model"],
      "Format of --graph; default: by the suffix of the file; a directory is a SavedModel.")
  flags.DEFINE_string("signature", None, "Signature of a SavedModel that a step runs; default: "
                      "serving_default, or the only one.")
  flags.DEFINE_list("tags", None, "Tags of a SavedModel's MetaGraph; default: serve, or the tags "
                    "of the only MetaGraph.")
  flags.DEFINE_boolean("trusted", False, "Whether to run the code of Lambda layers in a Keras file "
                       "(.keras, .h5). Say yes only for files of people whom you trust.")
  flags.DEFINE_integer("trip_count", None, "Rounds of each loop; default: inferred where the "
                       "bound is known before the run, else 10.", lower_bound=0)
  flags.DEFINE_bool("split_loops", False, "Whether the ops of one loop may be on several devices.")
  flags.DEFINE_integer("batch_size", None, "Size of unknown first dimensions of feeds, in "
                       "examples.", lower_bound=1, upper_bound=2**31 - 1)
  flags.DEFINE_multi_string("feed_shapes", [], "Shape of a feed, as name:32x128 or "
                            "name:scalar; repeatable.")


def define_any_graph_flag() -> None:
  """Defines --any_graph."""
  flags.DEFINE_boolean(
      "any_graph", False, "Whether to accept a placement that was made for another graph, for "
      "example of other shapes, if it has a device for each op.")


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
      "max_seconds", None, "Seconds of the search, without loading the graph and measuring"
      + (f"; {max_seconds:g} if no other limit is given." if max_seconds else "."),
      lower_bound=0, upper_bound=1e9)
  flags.DEFINE_integer(
      "max_evaluations", None, "Placements that the search may evaluate, baselines included; "
      "default: no limit.", lower_bound=0,
      upper_bound=10**12)


def define_runs_flag(default: str) -> None:
  """Defines --independent_runs; `default` describes its default in the help."""
  flags.DEFINE_integer(
      "independent_runs", None, "Independent runs of each search, side by side, each in a thread "
      f"with a seed of its own. The best placement is kept; {default}.", lower_bound=1)


def define_import_flag() -> None:
  """Defines --import."""
  flags.DEFINE_multi_string(
      "import", [], "Module of a policy of your own, such as my_package.my_policy; repeatable. "
      "Programs then offer its methods and its training beside those of the package.")


def import_policies() -> None:
  """Imports the modules of --import.

  Raises:
    PlacetoError: a module declares no policy.
  """
  from placeto_tf import policies  # not needed by every program

  for module in flags.FLAGS["import"].value:
    policies.use(module)


def define_ray_flag() -> None:
  """Defines --ray."""
  flags.DEFINE_string(
      "ray", None, "Ray cluster that works beside this process (pip install 'placeto_tf[ray]'): "
      "local (the cores of this machine), auto (the Ray cluster of this machine), or the host:port "
      "or ray://host:port of another Ray cluster. Default: no Ray.")


def define_replicas_flags() -> None:
  """Defines --replicas, --mirrored_variables, --slices, --batch_norm and --check_replicas."""
  flags.DEFINE_string("replicas", "1", "Replicas of the graph that train together: a number; "
                      "groups and micro-batches of a pipeline, such as '1 x 8'; or auto: the "
                      "replication strategy with the most examples a second.")
  flags.DEFINE_enum(
      "mirrored_variables", "auto", ["auto", "yes", "no"], "Whether each replica has a copy of the "
      "variables, kept equal by all-reduced gradients (yes), or all replicas share the graph's "
      "variables (no); auto: the faster of the two.")
  flags.DEFINE_string(
      "slices", "auto", "The most slices of columns of an embedding table that takes too much of "
      "the step or of the memory: a number, 1 for whole tables, or auto: with --replicas, as many "
      "as there are devices.")
  flags.DEFINE_enum(
      "batch_norm", "replica", ["replica", "synchronized"], "Statistics of batch normalization: of "
      "each replica's examples (replica), or of the global batch (synchronized).")
  flags.DEFINE_enum("check_replicas", "yes", ["yes", "no"], "Whether to train the graph and its "
                    "replicas side by side for a few steps on this machine and to compare them "
                    "before the placement is written; yes refuses replicas that do not run here.")


def define_look_flag() -> None:
  """Defines --look."""
  flags.DEFINE_enum(
      "look", "auto", ["auto", "yes", "no"], "Whether to run one step on this machine's CPU, in a "
      "process of its own with made-up feeds, to see shapes, and rounds and branches of loops, "
      "that inference does not know; auto: only a small step without side effects. Say no for "
      "graphs of people whom you do not trust.")


def tell(text: str) -> None:
  """Shows a line on stderr at once."""
  print(text, file=sys.stderr, flush=True)


def mirrored_variables() -> Optional[bool]:
  """Returns the value of --mirrored_variables; None for auto."""
  return {"auto": None, "yes": True, "no": False}[FLAGS.mirrored_variables]


def number_or_text(value: str) -> Union[int, str]:
  """Returns the value of --replicas or --slices, which `PlacingConfig` checks."""
  return int(value) if value.isdecimal() else value


def define_runtime_flags() -> None:
  """Defines --workers and --device_map, the real devices that run placements."""
  flags.DEFINE_list(
      "workers", [], "host:port of each running worker, in the order of their tasks, or local:N to "
      "start N workers on this machine. Default: as many as the cluster's device names have tasks, "
      "or none.")
  flags.DEFINE_list(
      "device_map", [], "/DEVICE=/DEVICE,...: a device of --cluster, and the real device that runs "
      "its ops; for names that differ.")


def runtime(cluster: Any) -> Tuple[Any, Optional[Dict[str, str]]]:
  """Returns the runtime of --workers, not yet started, and the value of --device_map."""
  from placeto_tf.runtime import workers

  return workers.make_runtime(cluster, FLAGS.workers), device_map() or None


def device_map() -> Dict[str, str]:
  """Reads {"/GPU:0": "/CPU:1"} from --device_map=/GPU:0=/CPU:1; {} where it is not given."""
  found: Dict[str, str] = {}
  for text in FLAGS.device_map:
    match = re.fullmatch(r" *(/[^=]*)=(/.*)", text)
    if not match or match[1] in found:
      raise PlacetoError(
          f"--device_map={','.join(FLAGS.device_map)} was not understood; expected each device "
          "once, as /DEVICE=/DEVICE, such as /GPU:0=/job:worker/task:1/device:CPU:0")
    found[match[1]] = match[2]
  return found


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
        f"{budget}: {row['step_time_us'] / 1e3:.1f} ms, {row['evaluations']} evaluations, "
        f"{row['seconds']:.1f} s", file=sys.stderr, flush=True)


def whole_numbers(name: str) -> Tuple[int, ...]:
  """Returns the numbers of a list flag.

  Raises:
    PlacetoError: the flag has anything else than whole numbers from 0 to 2^32 - 1.
  """
  texts: List[str] = FLAGS[name].value or []
  # Eleven digits are enough to be refused.
  if not all(text.isdecimal() and int(text[:11]) < 2**32 for text in texts):
    raise PlacetoError(f"--{name}={','.join(texts):.60} are not whole numbers from 0 to 2^32 - 1")
  return tuple(map(int, texts))


def expand_globs(texts: Sequence[str]) -> Tuple[str, ...]:
  """Replaces every glob by the files that it matches, sorted, and families by members."""
  expanded: List[str] = []
  for text in texts:
    if text.startswith("family:"):
      from placeto_tf.zoo import expand  # not needed by every program

      expanded += expand(text)
    # Brackets of a spec are no glob.
    elif text.startswith(("zoo:", "made:")) or not glob.has_magic(text):
      expanded.append(text)
    elif not glob.glob(text):
      raise PlacetoError(f"{text} matches no file; give a glob that does, or zoo:NAME")
    else:
      expanded += sorted(glob.glob(text))
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
  # Regexes and devices are checked where they are used.
  return user_files.read_json_object(
      path, what="the file of --allowed",
      remedy='expected a JSON object such as {"embedding/.*": ["/GPU:0", "/CPU:0"]}')


def parse_pins(texts: Sequence[str]) -> List[Tuple[str, str]]:
  """Reads (regex, device) pairs from "REGEX:DEVICE"; the device begins at the last ":/"."""
  pins = []
  for text in texts:
    # Greedy: the regex may hold colons and slashes.
    match = re.fullmatch("(.+):(/.*)", text)
    if not match:
      raise PlacetoError(f"--pin={text} was not understood; expected REGEX:DEVICE, such as "
                         "'embedding/.*:/CPU:0'")
    pins.append((match[1], match[2]))
  return pins
