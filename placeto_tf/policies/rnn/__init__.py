"""The RNN-based policy: groups in a sequence, LSTM encoder, attentional LSTM decoder."""

from placeto_tf.encoding.training_packages import check_training_packages

check_training_packages()  # before any module here imports tf-agents
