"""The graph of a topology: nodes, sub-topologies, internal topics, descriptions."""
