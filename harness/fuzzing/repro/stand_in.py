"""What an adapter's file may name of attn-harness, for a script that runs it without.

Copied beside a repro.py as it stands; needs torch alone. Call `install` before importing the adapter's file.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class AttentionOutput(NamedTuple):
    out: Tensor
    lse: Tensor | None = None


class Anything:
    """Whatever the file names when it declares what it takes."""

    def __init__(self, *_args: Any, **_named: Any) -> None:
        pass

    def __call__(self, *_args: Any, **_named: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return AttentionOutput if name == "AttentionOutput" else Anything()


def install() -> None:
    """Put the stand-ins where the file's imports look."""
    for package, modules in (
        ("harness", ("api", "adapters", "adapters.protocol", "adapters.capabilities")),
        ("cases", ("schema", "vocabulary", "batch")),
    ):
        sys.modules[package] = Module(package)
        for name in modules:
            sys.modules[f"{package}.{name}"] = Module(f"{package}.{name}")


class Case(types.SimpleNamespace):
    """The fields of an AttentionCase."""

    @property
    def group_size(self) -> int:
        return int(self.num_qo_heads // self.num_kv_heads)

    @property
    def scale(self) -> float:
        return float(self.head_dim_qk**-0.5 if self.sm_scale is None else self.sm_scale)

    def replace(self, **changes: Any) -> Case:
        return Case(**(vars(self) | changes))


class Batch(types.SimpleNamespace):
    """An AttentionBatch from keys, values and pages by request, and pools that hold the prefixes."""

    def __init__(
        self,
        case: Case,
        q: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
        k_pool: Tensor,
        v_pool: Tensor,
        pages: list[list[int]],
    ) -> None:
        def ints(rows: list[Any]) -> Tensor:
            return torch.tensor(rows, dtype=torch.int32, device=q.device)

        prefix, extend = ints([list(request) for request in case.requests]).T
        columns = max(1, *map(len, pages))
        super().__init__(
            case=case,
            device=q.device,
            q=q,
            k_pool=k_pool,
            v_pool=v_pool,
            k_new=torch.cat([x[p:] for (p, _), x in zip(case.requests, keys, strict=True)]),
            v_new=torch.cat([x[p:] for (p, _), x in zip(case.requests, values, strict=True)]),
            page_table=ints([row + [0] * (columns - len(row)) for row in pages]),
            prefix_lens=prefix,
            extend_lens=extend,
            kv_lens=prefix + extend,
            qo_indptr=torch.nn.functional.pad(extend.cumsum(0, dtype=torch.int32), (1, 0)),
        )

    def empty_output(self) -> Tensor:
        shape = (len(self.q), self.case.num_qo_heads, self.case.head_dim_vo)
        return torch.full(shape, torch.nan, dtype=self.q.dtype, device=self.device)

    def write_new_rows(self) -> None:
        at, size = 0, self.case.page_size
        for i, (prefix, extend) in enumerate(self.case.requests):
            for position in range(prefix, prefix + extend):
                page, offset = int(self.page_table[i, position // size]), position % size
                for pool, new in ((self.k_pool, self.k_new), (self.v_pool, self.v_new)):
                    by_token = pool if self.case.kv_layout == "NHD" else pool.transpose(1, 2)
                    by_token[page, offset] = new[at]
                at += 1
