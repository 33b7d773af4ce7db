"""`lockstep doctor`: looks at this machine and this installation, and says what to do about each finding.

Nothing here imports TensorFlow into the command's process: the op library is loaded, and collectives run, in processes
of their own. So the command works, and explains, where the library cannot be loaded.
"""
