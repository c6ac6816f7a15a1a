"""One file per library path. Planning (typed plans, pure torch) is kept apart from kernel calls."""
