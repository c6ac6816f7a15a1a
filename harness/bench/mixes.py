"""The fixed mixes that the bench runs: the same cases on every machine and in every release."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from cases import counter_hash
from cases.schema import AttentionCase, Request
from harness.errors import UsageError


@dataclass(frozen=True, slots=True)
class Mix:
    """A family of cases that differ in lengths and seed.

    requests: of each case; longest: keys of a request, prefix and new rows together; new_rows: most new rows of
    a request; skew: lengths are longest * u^skew for uniform u (1: uniform; 4: a few long ones);
    fixed_prefix: every request has exactly this prefix and `new_rows` new rows.
    """

    name: str
    summary: str
    requests: int
    longest: int
    new_rows: int
    skew: float = 1.0
    fixed_prefix: int | None = None
    window_left: int | None = None
    num_qo_heads: int = 8
    num_kv_heads: int = 2
    head_dim: int = 64
    page_size: int = 16

    def case(self, seed: int) -> AttentionCase:
        """Case number `seed` of the mix."""
        return AttentionCase(
            requests=tuple(self._requests(seed)),
            num_qo_heads=self.num_qo_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim_qk=self.head_dim,
            head_dim_vo=self.head_dim,
            window_left=self.window_left,
            page_size=self.page_size,
            seed=seed,
        )

    def cases(self, count: int, first_seed: int = 0) -> list[AttentionCase]:
        return [self.case(first_seed + i) for i in range(count)]

    def _requests(self, seed: int) -> Iterator[Request]:
        if self.fixed_prefix is not None:
            yield from [Request(self.fixed_prefix, self.new_rows)] * self.requests
            return
        uniform = _uniforms(counter_hash.stream_key(seed, f"bench/{self.name}"))
        for _ in range(self.requests):
            length = max(2, int(self.longest * next(uniform) ** self.skew))
            new = 1 + int(min(self.new_rows, length - 1) * next(uniform))
            yield Request(length - new, new)


def _uniforms(key: int) -> Iterator[float]:
    """Numbers in [0, 1) by a hash of their place, in plain integers: no tensor is worth making for them."""
    counter = 0
    while True:
        counter += 1
        yield (counter_hash.stream_key(key & ((1 << 62) - 1), str(counter)) & 0xFFFFFFFF) / 2**32


MIXES = {
    mix.name: mix
    for mix in (
        Mix("short", "8 requests of up to 512 tokens, window 127", 8, 512, 128, window_left=127),
        Mix("serving", "32 requests, skewed, up to 8192 tokens", 32, 8192, 256, skew=4.0, window_left=1023),
        Mix(
            "serving-8b",
            "serving with the heads of an 8B model: 32, 8 for kv, of 128",
            32,
            8192,
            256,
            skew=4.0,
            window_left=1023,
            num_qo_heads=32,
            num_kv_heads=8,
            head_dim=128,
        ),
        Mix("long", "2 requests with a prefix of 131072 and 64 new rows", 2, 131072 + 64, 64, fixed_prefix=131072),
    )
}
DEFAULT_CASES = {"short": 64, "serving": 32, "serving-8b": 8, "long": 2}


def chosen_mixes(names: list[str]) -> list[Mix]:
    """Mixes by name. Raises UsageError for one that there is not."""
    for name in names:
        if name not in MIXES:
            raise UsageError(f"there is no mix {name!r}; use {', '.join(MIXES)}.")
    return list(islice((MIXES[name] for name in names), len(names)))
