"""Example databases between the two calls of a round, and between engines."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis.database import ExampleDatabase, InMemoryExampleDatabase


class FoundInRound(InMemoryExampleDatabase):
    """Hands what the drawing call saved to the shrinking call.

    Hypothesis takes what lies under a test's own key for shrunk already, and does not shrink it again;
    what lies under its secondary key it replays and shrinks. So everything is shown there.
    """

    def fetch(self, key: bytes) -> Iterable[bytes]:
        if not key.endswith(b".secondary"):
            return ()
        primary = key.removesuffix(b".secondary")
        return [*super().fetch(key), *super().fetch(primary)]


class WriteOnly(ExampleDatabase):
    """Keeps what is found in another database without replaying what others found."""

    def __init__(self, database: ExampleDatabase) -> None:
        super().__init__()
        self.database = database

    def save(self, key: bytes, value: bytes) -> None:
        self.database.save(key, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        del key
        return ()

    def delete(self, key: bytes, value: bytes) -> None:
        self.database.delete(key, value)
