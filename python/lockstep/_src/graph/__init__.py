"""Questions about the operations of a graph: their ancestors, values that are alike on all workers, weights of rows."""
