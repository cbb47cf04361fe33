"""`OpRule`: the facts about an op type that an analysis of graphs needs, and `rule_of`.

The rows are in `rules.py`. Facts are data. For example, a row says that a `MatMul` moves batch axes
by the rule "contract"; the rule itself is code in `replication/axis_rules.py`. `tests/ops/` checks
the rows: it runs the ops with TensorFlow on a whole batch and on slices of the batch.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, FrozenSet, Optional, Tuple

# Names for inputs of ops with a variable number of inputs.
ALL, BUT_LAST, BUT_FIRST = "all", "but_last", "but_first"
# Roles of ops besides computing; random ops first, by the state that they sample from.
RANDOM = "random"  # samples from its own state, which is seeded by its attributes
SEEDED_RANDOM = "seeded_random"  # samples from the seed in an input
KEYED_RANDOM = "keyed_random"  # samples from a key and a counter, which other ops make from a seed
VARIABLE_RANDOM = "variable_random"  # samples from a variable, which each call advances
PIPELINE = "pipeline"  # outputs the next examples
CONTAINER = "container"  # makes a container that lives for a step
VARIABLE = "variable"  # is the handle or reference of a variable
OF_VARIABLE = "of_variable"  # stateful, but its only state is a variable
UPDATE = "update"  # writes a variable
HARMLESS = "harmless"  # stateful, but each replica may run the op
OUTSIDE = "outside"  # stateless to TensorFlow, but reads or writes files, or asks servers


@dataclasses.dataclass(frozen=True)
class Scale:
  """The rule by which an op's results scale if inputs of the op are multiplied by numbers.

  Attributes:
    kind: the inputs with which results scale:
      "factor": one input, for any values of the other inputs;
      "gradient": one input, if the other inputs are not multiplied;
      "alike": several inputs that are all multiplied by the same number;
      "product": all inputs;
      "quotient": the first input, and inversely the second input;
      "shape": no input.
    inputs: indices of the inputs with which results scale; or `ALL`, `BUT_LAST`, `BUT_FIRST`.
    degree: the exponent: inputs multiplied by f give results multiplied by f^degree.
  """

  kind: str
  inputs: object = ()
  degree: float = 1.0


@dataclasses.dataclass(frozen=True)
class OpRule:
  """Facts about an op type; the defaults mean that a fact is unknown.

  Attributes:
    axes: name of the rule by which the batch axis moves from the inputs to the outputs; "" if
      unknown. "elementwise": each element of the output depends only on the elements of the inputs
      at the same index, after broadcasting. "moved": the op keeps the order of the
      examples, so that the axis that is longer at a larger batch holds them.
    scale: the factor of results if inputs are scaled; None if there is no simple rule.
    linear: inputs in which the op is jointly linear; "bilinear" if linear in each input alone.
    moves: inputs whose elements the first output consists of, such as the data of a GatherV2; or
      `ALL`, `BUT_LAST`.
    passes: whether the op commutes with the maximum (minimum, conjunction) over several tensors.
    positions: effect on positions of examples in the batch: "keeps" them; "moves" them to slots;
      "tells": the axis rule handles positions; "": the op needs positions in the global batch.
    role: see the constants of this module; "" for an op that computes.
    key: whether the op makes keys for random ops that sample from a key.
    puts: (number of the container input or None, number of the tensor input, number of axes that
      the tensor gains in the container).
    takes: (number of the container input, number of axes that the tensor gains outside of the
      container, number of the output with the tensor).
    any_number: set if the number of rows depends on values: the outputs that are as long as an
      input.
    bends: whether the op may turn a multiple of the number of examples into another number.
    shaped: whether an input is the output's shape, or a tensor of the same shape.
    scales_rows: whether optimizers use the op on rows of a gradient before they apply the rows.
    averages: whether the op may be between statistics and their moving average.
    hands_on: whether outputs are inputs of the op, unchanged: output i is input i of an IdentityN,
      the output of a Merge is any input, that of another op is the first input.
    kernels: number of kernels that a GPU launches for a run of the op. With 0, the op passes on a
      tensor, a handle or a shape, on any device: constants and variables exist before the step
      begins, reads of variables alias them, and ops that change no element move no bytes.
    kind: the kind of the op's kernels on a GPU, for which a preset may have a measured speed.
    windows: sides of the square windows of a convolution that, at stride 1, have kernels of their
      own, whose speed a preset may have, too.
    product: the attribute with the type of the factors, for ops that tensor cores run; else "".
    flow: the part in a loop or branch of TensorFlow 1: "enter", "exit", "merge", "next", "switch".
    inline: whether the executor of a CPU runs the op in the thread that made it ready: the op's CPU
      kernel overrides IsExpensive(), by TensorFlow's headers (core/kernels).
    host: whether the op has no GPU kernel for a reason that the types of its tensors do not show.
    of_gpu: whether GPUs have a kernel of their own, which a TensorFlow for CPUs does not register,
      beside one for all devices whose outputs are on the host.
  """

  axes: str = ""
  scale: Optional[Scale] = None
  linear: object = None
  moves: object = ()
  passes: bool = False
  positions: str = ""
  role: str = ""
  key: bool = False
  puts: Optional[Tuple[Optional[int], int, int]] = None
  takes: Optional[Tuple[int, int, int]] = None
  any_number: Optional[Tuple[int, ...]] = None
  bends: bool = False
  shaped: bool = False
  scales_rows: bool = False
  averages: bool = False
  hands_on: bool = False
  kernels: int = 1
  kind: str = ""
  windows: Tuple[int, ...] = ()
  product: str = ""
  flow: str = ""
  inline: bool = False
  host: bool = False
  of_gpu: bool = False


# Facts about an op type without a row.
_NONE = OpRule()
# Op type -> its facts, merged from all rows that name the type.
_RULES: Dict[str, OpRule] = {}


def register(names: str, **facts: object) -> None:
  """Adds facts to the rules of op types, whose names are separated by blanks.

  Raises:
    ValueError: the fact is already registered for one of the types.
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
  """Returns the op types with these facts.

  Args:
    **facts: fields of `OpRule` and their values.

  Returns:
    The types that have all of these values.
  """
  return frozenset(name for name, rule in _RULES.items()
                   if all(getattr(rule, key) == value for key, value in facts.items()))


def members(inputs: object, count: int) -> Tuple[int, ...]:
  """Returns the numbers of the inputs that a row names.

  Args:
    inputs: numbers of inputs, or `ALL`, `BUT_LAST` or `BUT_FIRST`.
    count: the number of inputs that the op has.

  Returns:
    The numbers, ascending where `inputs` is one of the constants.
  """
  if isinstance(inputs, tuple):
    return inputs
  # A comparison is 0 or 1, so it skips the first input, or the last.
  return tuple(range(inputs == BUT_FIRST, count - (inputs == BUT_LAST)))
