"""Grouped graph, cluster and placement as inputs of policies: arrays, GraphTensor, TFRecord.

`grouped_graph` is plain NumPy. The other modules need TensorFlow GNN and so the legacy Keras.
"""
