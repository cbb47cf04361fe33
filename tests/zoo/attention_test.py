import numpy as np
import tensorflow as tf

from placeto_tf.zoo import attention

v1 = tf.compat.v1


def test_attention_weighs_the_memory_by_a_softmax_of_scores():
  batch, source, hidden = 2, 3, 4
  rng = np.random.default_rng(1)
  encoded = rng.normal(size=(source, batch, hidden)).astype(np.float32)
  query = rng.normal(size=(batch, hidden)).astype(np.float32)
  with tf.Graph().as_default():
    attending = attention.AdditiveAttention([tf.constant(step) for step in encoded], hidden)
    context = attending.context(tf.constant(query))
    weights = {variable.op.name: variable for variable in v1.trainable_variables()}
    with v1.Session() as session:
      session.run(v1.global_variables_initializer())
      found, values = session.run([context, weights])
  memory = encoded.transpose(1, 0, 2)
  summed = memory @ values["attention/keys"] + (query @ values["attention/query"])[:, None]
  scores = np.exp(np.tanh(summed) @ values["attention/score"])
  shares = scores / scores.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(found, np.einsum("bs,bsh->bh", shares, memory), rtol=1e-4, atol=1e-5)
