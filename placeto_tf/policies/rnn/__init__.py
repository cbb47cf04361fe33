"""The RNN-based policy: groups in a sequence, LSTM encoder, attentional LSTM decoder."""

from placeto_tf.encoding.legacy_keras import check_legacy_keras

check_legacy_keras()  # before any module here imports tf-agents
