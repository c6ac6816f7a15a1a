"""Running cases: in this process (`examine`), in workers that may die (`worker`, `pool`), many at once (`runner`)."""
