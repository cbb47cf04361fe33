import tensorflow as tf

from placeto_tf.zoo import amoebanet

v1 = tf.compat.v1


def test_it_has_as_many_parameters_as_published():
  # 82 M for 18 cells and 208 filters (Huang et al. 2018); the image's size does not matter.
  with tf.Graph().as_default():
    amoebanet.amoebanet(batch=1, image=32, cells=18, filters=208)
    count = sum(variable.shape.num_elements() for variable in v1.trainable_variables())
  assert round(count / 1e6) == 82


def test_images_shrink_by_32_and_cells_widen():
  with tf.Graph().as_default() as graph:
    amoebanet.amoebanet(batch=1, image=64, cells=3, filters=16)
  shapes = {op.name.split("/")[0]: op.outputs[0].shape.as_list()[1:]
            for op in graph.get_operations() if op.type == "ConcatV2" and op.name.count("/") == 1
            and op.name.endswith("/concat")}
  assert shapes == {
      "stem_reduction_0": [16, 16, 3 * 8], "stem_reduction_1": [8, 8, 3 * 16],
      "cell_0": [8, 8, 4 * 16], "reduction_1": [4, 4, 3 * 32], "cell_1": [4, 4, 4 * 32],
      "reduction_2": [2, 2, 3 * 64], "cell_2": [2, 2, 4 * 64]}
