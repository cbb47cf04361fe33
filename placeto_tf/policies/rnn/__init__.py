"""The RNN-based policy: groups in a sequence, LSTM encoder, attentional LSTM decoder."""
