import re

import pytest

from placeto_tf.errors import GraphError
from placeto_tf.graphs import shapes


@pytest.mark.parametrize("declared, given, batch_size, expected", [
    ((2, 3), None, None, (2, 3)), ((-1, 3), None, 8, (8, 3)), ((-1, 3), (5, 3), 8, (5, 3)),
    (None, (4,), None, (4,)), ((), None, 8, ()), ((-1, -1), (2, 3), None, (2, 3)),
])
def test_shapes_are_bound(declared, given, batch_size, expected):
  assert shapes.bind("x:0", declared, given, batch_size) == expected


@pytest.mark.parametrize("declared, batch_size, culprit", [
    (None, 8, "unknown rank.*--feed_shapes=x:32x128"),
    ((-1, -1), 8, r"\[8, \?\].*--feed_shapes=x:8x32"),
    ((3, -1), None, r"feed_shapes=\{'x': \(3, 32\)\} or the like \(--feed_shapes=x:3x32\)$"),
])
def test_what_stays_unknown_is_in_the_message(declared, batch_size, culprit):
  unknown = shapes.bind("x:0", declared, None, batch_size)
  assert re.search(culprit, shapes.unknown_shapes({"x:0": unknown}))


@pytest.mark.parametrize("declared, given, culprit", [
    ((-1, 3), (2, 4), r"\[\?, 3\], but \[2, 4\]"), ((2,), (2, 1), "correct")])
def test_what_contradicts_is_refused(declared, given, culprit):
  with pytest.raises(GraphError, match=culprit):
    shapes.bind("x:0", declared, given, None)


@pytest.mark.parametrize("shape", ["2x3", (2.0,), (-3,), (True,), (1 << 50,)])
def test_given_shapes_are_whole_numbers(shape):
  with pytest.raises(GraphError, match="list of whole numbers"):
    shapes.check_given(None, {"x": shape})
