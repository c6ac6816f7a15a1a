"""Running and judging: adapters, workers, verdicts, records, gate, command line."""

__version__ = "0.1.0"
