"""`OpRule`: the facts about an op type that an analysis of graphs needs, and `rule_of`.

The rows are in `rules.py`. Facts are data: how a batch axis moves through a `MatMul` is written
where batch axes are followed (`replication/axis_rules.py`), that a `MatMul` moves it as a
contraction does is written here. `tests/ops/` runs the rows with TensorFlow on a whole batch and on
slices of it: a row that the numbers contradict fails.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, FrozenSet, Optional, Tuple

# Inputs of an op that has any number of them.
ALL, BUT_LAST, BUT_FIRST = "all", "but_last", "but_first"
# Roles of ops besides computing; random ops first, by the state that they sample from.
RANDOM = "random"  # samples from its own state, which the seeds in its attributes start
SEEDED_RANDOM = "seeded_random"  # samples from the seed in an input
KEYED_RANDOM = "keyed_random"  # samples from a key and a counter, which other ops make of a seed
VARIABLE_RANDOM = "variable_random"  # samples from a variable, which each call advances
PIPELINE = "pipeline"  # gives the next examples
CONTAINER = "container"  # makes a container that lives for a step
VARIABLE = "variable"  # is the handle or reference of a variable
OF_VARIABLE = "of_variable"  # stateful, but of a variable alone
UPDATE = "update"  # writes a variable
HARMLESS = "harmless"  # stateful, and may be done by each replica


@dataclasses.dataclass(frozen=True)
class Scale:
  """How an op's results scale where its inputs are multiplied by numbers.

  Attributes:
    kind: "factor", with one input, whatever the others; "gradient", with one input if the others
      have their own values; "alike", with several inputs that are all multiplied by one number;
      "product" of all inputs; "quotient" of the first two; "shape", not at all.
    inputs: their numbers; or `ALL`, `BUT_LAST`, `BUT_FIRST`.
    degree: the exponent: inputs times f give results times f^degree.
  """

  kind: str
  inputs: object = ()
  degree: float = 1.0

  def members(self, count: int) -> Tuple[int, ...]:
    """Returns the numbers of `inputs` for an op with so many inputs."""
    return members(self.inputs, count)


@dataclasses.dataclass(frozen=True)
class OpRule:
  """Facts about an op type; by default none is known.

  Attributes:
    axes: name of the rule by which the batch axis moves from the inputs to the outputs; "" where
      none is known. "elementwise": each element of the output depends on the elements of the
      inputs that broadcasting puts beside it.
    scale: how results scale with inputs; None where they do not in any simple way.
    linear: inputs in which, taken together, the op is linear; "bilinear" if it is so in each.
    passes: whether the maximum (minimum, conjunction) of several tensors goes through.
    positions: of examples in the batch: "keeps", "moves" (they may be shifted to slots), "tells"
      (a rule sees whether indices are positions); "" where an op needs those in the global batch.
    role: see the constants of this module; "" for an op that computes.
    key: whether the op makes keys for random ops that sample from one.
    shape_input: the data input that holds the shape of the output.
    element_input: the data input that holds the shape of a container's tensors.
    puts: (container's input or None, tensor's input, by how many axes the tensor grows inside).
    takes: (container's input, by how many axes the tensor grows outside, output with the tensor).
    any_number: if the number of rows depends on values, the outputs that are as long as an input.
    sizes: for whole numbers that are sizes of tensors: "entries", each result comes of the sizes at
      its place; "some", results are sizes again; "" where they may be anything.
    bends: whether a multiple of the number of examples may become none.
    shaped: whether an input states the output's shape, or is a tensor of that shape.
    passes_on: whether the op hands on an input as it is.
    scales_rows: whether an optimizer uses it on the rows of a gradient before it applies them.
    averages: whether it may stand between statistics and their moving average.
  """

  axes: str = ""
  scale: Optional[Scale] = None
  linear: object = None
  passes: bool = False
  positions: str = ""
  role: str = ""
  key: bool = False
  shape_input: Optional[int] = None
  element_input: Optional[int] = None
  puts: Optional[Tuple[Optional[int], int, int]] = None
  takes: Optional[Tuple[int, int, int]] = None
  any_number: Optional[Tuple[int, ...]] = None
  sizes: str = ""
  bends: bool = False
  shaped: bool = False
  passes_on: bool = False
  scales_rows: bool = False
  averages: bool = False


# Facts about an op type without a row.
_NONE = OpRule()
# Op type -> its facts, merged from all rows that name the type.
_RULES: Dict[str, OpRule] = {}


def register(names: str, **facts: object) -> None:
  """Adds facts to the rules of op types, whose names are separated by blanks.

  Raises:
    ValueError: a fact is already known of one of them.
  """
  for name in names.split():
    rule = _RULES.get(name, _NONE)
    # A fact may be stated once: a second row would silently change the first.
    twice = [key for key in facts if getattr(rule, key) != getattr(_NONE, key)]
    if twice:
      raise ValueError(f"{twice} of {name} is stated twice")
    _RULES[name] = dataclasses.replace(rule, **facts)  # type: ignore[arg-type]


def rule_of(op_type: str) -> OpRule:
  """Returns the facts about an op type."""
  return _RULES.get(op_type, _NONE)


def registered() -> Dict[str, OpRule]:
  """Returns the rules by op type."""
  return dict(_RULES)


def types_with(**facts: object) -> FrozenSet[str]:
  """Returns the op types of which these facts are true.

  Args:
    **facts: fields of `OpRule` and their values.

  Returns:
    The types that have all of these values.
  """
  return frozenset(name for name, rule in _RULES.items()
                   if all(getattr(rule, key) == value for key, value in facts.items()))


def members(inputs: object, count: int) -> Tuple[int, ...]:
  """Returns the numbers of the inputs that a row states.

  Args:
    inputs: numbers of inputs, or `ALL`, `BUT_LAST` or `BUT_FIRST`.
    count: the number of inputs that the op has.

  Returns:
    The numbers, ascending where `inputs` is one of the constants.
  """
  if isinstance(inputs, tuple):
    return inputs
  # The comparisons count as 0 or 1: skip the first input, or the last.
  return tuple(range(inputs == BUT_FIRST, count - (inputs == BUT_LAST)))
