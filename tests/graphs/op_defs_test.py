import pytest

from placeto_tf.graphs.op_defs import REF, OpDefs

FLOAT, INT32, RESOURCE = 1, 3, 20


def node(op, **attrs):
  from tensorflow.core.framework import node_def_pb2

  result = node_def_pb2.NodeDef(name="n", op=op)
  for key, value in attrs.items():
    if isinstance(value, list):
      result.attr[key].list.type.extend(value)
    elif key in ("N", "num", "num_split"):
      result.attr[key].i = value
    else:
      result.attr[key].type = value
  return result


@pytest.mark.parametrize("given, inputs, outputs", [
    (node("NoOp"), (), ()),
    (node("AddV2", T=FLOAT), (FLOAT, FLOAT), (FLOAT,)),
    (node("AddN", T=INT32, N=3), (INT32,) * 3, (INT32,)),
    (node("Split", T=FLOAT, num_split=4), (INT32, FLOAT), (FLOAT,) * 4),
    (node("IdentityN", T=[FLOAT, INT32]), (FLOAT, INT32), (FLOAT, INT32)),
    (node("ReadVariableOp", dtype=FLOAT), (RESOURCE,), (FLOAT,)),
    (node("Assign", T=FLOAT), (FLOAT + REF, FLOAT), (FLOAT + REF,)),
    (node("Shape", T=FLOAT), (FLOAT,), (INT32,)),
], ids=lambda value: getattr(value, "op", ""))
def test_signatures_follow_the_attributes(given, inputs, outputs):
  signature = OpDefs().signature(given)
  assert signature.inputs == inputs
  assert signature.outputs == outputs


def test_arguments_have_ranges_of_outputs():
  ranges = OpDefs().signature(node("FusedBatchNormV3", T=FLOAT, U=FLOAT)).output_ranges
  assert ranges["y"] == (0, 1) and ranges["batch_variance"] == (2, 1)
  assert OpDefs().signature(node("Unpack", T=FLOAT, num=3)).output_ranges == {"output": (0, 3)}
