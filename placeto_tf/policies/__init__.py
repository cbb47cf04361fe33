"""Networks and agents, a folder a policy. All need tf-agents, TF-GNN and the legacy Keras."""
