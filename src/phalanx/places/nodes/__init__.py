"""Several nodes: they meet, plan as one machine, start ranks together and notice a loss."""
