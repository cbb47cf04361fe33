"""How tests run sessions on graphs that they run only a few times."""

import tensorflow as tf

v1 = tf.compat.v1


def unoptimized(**options):
  """A ConfigProto without grappler: optimizing a graph takes longer than running it a few times."""
  config = v1.ConfigProto(**options)
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  return config


def assert_runs_as_placed(graph, replicated, placement, x):
  """Runs a step of replicas on four CPU devices: every op is where the placement says.

  Args:
    graph: the placed `tf.Graph`, with an op `init`.
    replicated: the replicas in it, which take the global batch `x` for "x:0".
    placement: of their ops, on all four devices.
  """
  config = unoptimized(
      device_count={"CPU": 4}, allow_soft_placement=False,
      inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
  config.graph_options.optimizer_options.opt_level = -1
  options = v1.RunOptions(
      trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=True)
  metadata = v1.RunMetadata()
  with v1.Session(graph=graph, config=config) as session:
    session.run("init")
    session.run(list(replicated.graph.fetches), {"x:0": x}, options=options, run_metadata=metadata)
  ran = {node.name: node.device for part in metadata.partition_graphs for node in part.node}
  names = [name for name in replicated.graph.op_names if name in ran]
  assert len(names) > 0.8 * replicated.graph.num_ops
  for name in names:
    assert ran[name].endswith(placement[name].rpartition("/")[2].replace("device:", "")), name
  assert {ran[name][-1] for name in names} == {"0", "1", "2", "3"}
