"""The launcher's own command line, and the jobs and function calls that it and the other frontends start."""
