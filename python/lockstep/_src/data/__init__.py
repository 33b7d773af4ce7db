"""Input: datasets of columns, and iterators that end on all workers at the same step."""
