"""Variables that all workers hold, and the values that keep them alike."""
