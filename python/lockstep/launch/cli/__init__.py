"""The launcher's command line, and what it shares with the frontends: options, jobs, and function calls on workers."""
