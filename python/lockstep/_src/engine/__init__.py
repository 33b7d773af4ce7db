"""The connection to the engine: the op library, this process's place in its job, options, and the program's end."""
