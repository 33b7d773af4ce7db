"""The parts of DeepRec's interface that nothing else in this project uses."""
