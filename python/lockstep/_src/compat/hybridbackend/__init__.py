"""The parts of HybridBackend's interface that nothing else in this project uses."""
