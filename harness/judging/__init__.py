"""From an output to evidence, and from evidence to a verdict."""
