"""One simulated step for other compiled loops, by the event loop that the cluster needs.

The loops call the event loop by its address. So the event loop is compiled once, and not again as a
part of each loop that calls it.
"""

from __future__ import annotations

from typing import Any

import numba
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from placeto_tf.errors import SetupError


def address_of(function: Any, *arguments: Any) -> int:
  """Compiles a function for arguments like these, and returns its address in this process.

  Args:
    function: a compiled function, which exists as long as the process.
    *arguments: examples.

  Raises:
    SetupError: numba's compiler is switched off.
  """
  if not hasattr(function, "compile"):  # a plain function, as numba then leaves it
    raise SetupError("NUMBA_DISABLE_JIT is set, but the simulator is compiled by numba; unset it")
  signature = tuple(map(numba.typeof, arguments))
  function.compile(signature)
  found = function.overloads[signature]
  return found.library.get_pointer_to_function(found.fndesc.llvm_func_name)


@intrinsic
def simulate_step(
    typing_context, address, placements, arguments, start_us, step_time_us, peak_bytes):
  """Simulates placements[0]; see `event_loop.simulate_range`.

  Args:
    typing_context: of numba.
    address: of an event loop, `engine.address`.
    placements: [B, N] int32; the first row is simulated.
    arguments: of an engine, `engine.arguments(workspace)`.
    start_us: [B, N] float64, or [1, N]; the first row is filled.
    step_time_us: [B] float64; the first entry is filled.
    peak_bytes: [B, D] float64; the first row is filled.
  """
  del typing_context

  def generate(context, builder, signature, values):
    """Generates the call of a function at an address, by numba's calling convention."""
    _, rows, given, *results = signature.args
    address_value, row_values, given_values, *result_values = values
    # placements, first, last, the engine's arguments, results.
    kinds = (rows, types.int64, types.int64, *given.types, *results)
    bounds = [context.get_constant(types.int64, bound) for bound in (0, 1)]
    convention = context.call_conv
    pointer = builder.inttoptr(
        address_value, convention.get_function_type(types.none, kinds).as_pointer())
    convention.call_function(
        builder, pointer, types.none, kinds,
        (row_values, *bounds, *cgutils.unpack_tuple(builder, given_values), *result_values))
    return context.get_dummy_value()

  return types.none(
      address, placements, arguments, start_us, step_time_us, peak_bytes), generate
