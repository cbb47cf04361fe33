"""The errors of the package: `PlacetoError` and its few children are what a caller catches.

Every message names what was found, what was expected and the remedy, in one sentence, because
the programs print it as it is and end with exit code 2.
"""


class PlacetoError(Exception):
  """Base of every error that placeto_tf raises on purpose."""


class GraphError(PlacetoError):
  """A graph that cannot be read or placed: bad file, unknown op, dangling input, cycle."""


class ClusterError(PlacetoError):
  """A cluster string, JSON file or link table that is wrong."""


class CostError(PlacetoError):
  """Costs that are missing, negative, not a number, or do not belong to the graph."""


class PlacementError(PlacetoError):
  """A placement that does not fit its graph or cluster."""


class SetupError(PlacetoError):
  """Something the installation lacks, such as the legacy Keras."""


class MeasurementError(PlacetoError):
  """A measurement that failed: a lost worker, a time-out, a step out of memory."""
