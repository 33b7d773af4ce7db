"""Collectives on tensors in two lanes, the ordered one and the one that matches by name; agreements of the workers."""
