"""Where the rows of tables are: a planner that decides it, and `lockstep.plan()`, which shows it.

`engine/placements.py` reads what a program says, `planner.py` places each table when it is made, `costs.py` has the
estimates behind it, and `plan.py` gathers and prints.
"""
