"""The layers of SOK 1.x, each in a module of its own."""
