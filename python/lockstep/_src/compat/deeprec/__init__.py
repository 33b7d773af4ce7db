"""DeepRec's interfaces that nothing else here uses."""
