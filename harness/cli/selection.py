"""From what was typed (suites, files, globs) to the jobs of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from cases.corpus_io import load_case_file
from cases.schema import AttentionCase
from cases.suites import load_suite
from harness.adapters import registry
from harness.cli.outside import adapter_name
from harness.environment import gpu_ids
from harness.errors import UsageError
from harness.gate.scope import has_keyword
from harness.loading import is_file_spec
from harness.running.options import Job

# torch's own kernels that need no GPU and no compiling, and take no seconds a case.
CPU_DEFAULTS = ("torch-sdpa",)
DEFAULT_SUITES = ("smoke", "seeds")


def select_adapters(patterns: Sequence[str], entries: Sequence[registry.Entry] | None = None) -> list[str]:
    """Adapter names or file specs. Without patterns: every adapter that can run here and is worth its
    time: emulated ones only where there is no GPU, and what compiles for seconds a case only on one.

    `entries`: those of another environment (harness/running/elsewhere.py); default: this one's.
    Raises UsageError where a pattern names nothing, or only what cannot run here (with the reason). What a file needs
    may be in the other environment alone: there it is for a worker to load.
    """
    here = entries is None
    entries = registry.available() if entries is None else entries
    if not patterns:
        on_gpu = bool(gpu_ids())
        runnable = [e.name for e in entries if e.why_not is None and default_here(e, on_gpu)]
        if not runnable:
            raise UsageError("no adapter can run here; `attn-harness doctor` says why.")
        return runnable
    chosen: list[str] = []
    for pattern in patterns:
        if is_file_spec(pattern):
            if here:
                adapter_name(pattern)  # refused before any case is run
            chosen.append(str(pattern))
            continue
        matching = [e for e in entries if fnmatch(e.name, pattern)]
        if not matching:
            raise UsageError(f"there is no adapter {pattern!r}; `attn-harness list adapters` names them.")
        runnable = [e.name for e in matching if e.why_not is None]
        if not runnable:
            raise UsageError(f"adapter {matching[0].name} cannot run here: {matching[0].why_not}.")
        chosen += runnable
    return list(dict.fromkeys(chosen))


def say_not_run(patterns: Sequence[str], entries: Sequence[registry.Entry] | None = None) -> None:
    """Tell on standard error, by name and reason, which adapters that the patterns name cannot run, so that nobody
    takes the others for them. For after `select_adapters`."""
    entries = registry.available() if entries is None else entries
    left: dict[str, list[str]] = {}
    for entry in entries:
        if entry.why_not is not None and any(fnmatch(entry.name, p) for p in patterns if not is_file_spec(p)):
            left.setdefault(entry.why_not, []).append(entry.name)
    if left:
        told = "; ".join(f"{', '.join(names)} ({why_not})" for why_not, names in left.items())
        print(f"not run here: {told}", file=sys.stderr, flush=True)


def default_here(entry: registry.Entry, on_gpu: bool) -> bool:
    """Whether an adapter runs when none was named."""
    if on_gpu:
        return not entry.emulated and entry.name != "torch-flex-eager"
    return entry.emulated or entry.name in CPU_DEFAULTS


def select_cases(
    suites: Sequence[str], paths: Sequence[Path], keyword: str | None = None
) -> list[tuple[str | None, AttentionCase]]:
    """(suite or None, case) pairs, each case once. Raises UsageError or CaseError."""
    pairs: list[tuple[str | None, AttentionCase]] = []
    if not suites and not paths:
        suites = DEFAULT_SUITES
    for suite in suites:
        pairs += [(suite, case) for case in load_suite(suite)]
    for path in paths:
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        if not files:
            raise UsageError(f"{path} holds no .json case.")
        pairs += [(None, load_case_file(file)) for file in files]
    if keyword:
        pairs = [(s, c) for s, c in pairs if has_keyword(keyword, c.name, c.id)]
        if not pairs:
            raise UsageError(f"no case has {keyword!r} in its name or at the start of its id.")
    seen: set[str] = set()
    return [(s, c) for s, c in pairs if not (c.id in seen or seen.add(c.id))]  # type: ignore[func-returns-value]


def make_jobs(adapters: Sequence[str], cases: Sequence[tuple[str | None, AttentionCase]]) -> list[Job]:
    """Adapter by adapter, so that a worker keeps one library warm."""
    return [Job(case, adapter, suite) for adapter in adapters for suite, case in cases]
