"""Placeto (Addanki et al., NeurIPS 2019): graph embedding, policy network, REINFORCE agent."""
