"""The catalogue: every fault shows on its smallest case, no control does, and the public reports are accounted for."""

import re

import pytest
import torch

from cases.schema import AttentionCase, Execution, Mode, Request
from harness.emulation.hooks import Hooks
from harness.errors import UsageError
from harness.faults.catalogue import CATALOGUE, CONTROLS
from harness.faults.catalogue.building import chain
from harness.faults.coverage import ROWS
from harness.faults.protocol import Fault, FaultClass, compose
from harness.faults.registry import known_faults, load_fault, plant
from harness.faults.shots import CRASH, TIMEOUT, Range, cost, emulated_adapters, targets

# The ids of the public reports that the catalogue was written from, by class.
REPORTS = {
    "A": "01 02 03 07 08 10 11 12 14 15 17 19 20 21 23 24 25 27",
    "B": "01 02 04 06 08 09 11 12 13 15 17 19",
    "C": "01 05 06 08 09 10 12 13 15 16 17 18 19",
    "D": "04 05 06 07 08 09 10 14 16 17 18 20",
    "E": "01 05 06 07 08 09 10",
    "F": "01 02 03 04 05 06 08 09 10 12",
    "G": "06",
    "H": "01 02 03 04 06 07 08 09",
    "I": "04 05 06 07 09 10",
    "J": "01 03 04 05 06 07 08 09 10 14 15 16 17 19 20 21 22",
    "K": "01 02 03 04 05 07",
    "L": "01 02 03 05 07 08 09 10 12",
    "M": "03",
    "N": "01 02",
    "O": "01 02 03",
}

# No emulated path takes what would show these: fp8 caches, unequal head_dims.
UNTAKEN = {"window-hangs-fp8-past-tile", "v-read-with-k-stride", "kv-scale-applied-twice", "kv-scales-dropped"}
# Their smallest case needs gigabytes.
TOO_LARGE = {f.name for f in CATALOGUE if f.smallest is None or cost(f.smallest) > 1 << 24 or f.smallest.pool_pages}

VARIED = (
    AttentionCase(requests=(Request(5, 4), Request(0, 3), Request(3, 0)), window_left=4, page_size=4),
    AttentionCase(requests=(Request(300, 2), Request(2, 2)), execution=Execution(num_splits=3)),
    AttentionCase(requests=(Request(3, 5), Request(40, 6)), window_left=2, page_size=16),
    AttentionCase(requests=(Request(13, 4),), poison="nan", logits_soft_cap=2.0),
    AttentionCase(
        requests=(Request(50, 2), Request(5, 3)),
        mode=Mode.DRAFT_EXTEND_V2,
        execution=Execution(capture_requests=(Request(90, 4), Request(2, 4))),
    ),
)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def shooting():
    return Range()


def test_names_are_unique_and_say_something():
    everyone = (*CATALOGUE, *CONTROLS)
    assert len({f.name for f in everyone}) == len(everyone)
    for fault in everyone:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fault.name), fault.name
        assert len(fault.summary) > 20, fault.name
        assert fault.on_plan or fault.on_kernel, fault.name


def test_size_of_the_catalogue():
    assert len(CATALOGUE) >= 45
    assert len(CONTROLS) >= 8
    assert sum(f.on_plan is not None for f in CATALOGUE) >= 15
    missing = set(FaultClass) - {f.fault_class for f in CATALOGUE} - {FaultClass.OTHER, FaultClass.INVARIANCE}
    assert not missing


def test_every_public_report_is_accounted_for_once():
    ids = [f"{letter}{number}" for letter, numbers in REPORTS.items() for number in numbers.split()]
    assert len(ids) == 125
    assert sorted(row.id for row in ROWS) == sorted(ids)
    known = known_faults()
    for row in ROWS:
        assert bool(row.faults) != bool(row.why_not), row.id
        assert all(name in known for name in row.faults), row.id
    assert sum(bool(row.faults) for row in ROWS) >= 100


def test_every_fault_stands_for_a_report_or_is_our_own():
    named = {name for row in ROWS for name in row.faults}
    own = {f.name for f in CATALOGUE if not f.reports}
    assert not own & named, "a fault that a report names must cite it"


@pytest.mark.parametrize("fault", [f for f in CATALOGUE if f.name not in TOO_LARGE | UNTAKEN], ids=lambda f: f.name)
def test_shows_on_its_smallest_case(shooting, fault):
    assert fault.blind(fault.smallest) is None
    found = targets(shooting, fault, [fault.smallest], emulated_adapters())
    assert found, "no emulated path takes the smallest case"
    shots = [shooting.shoot(fault.smallest, name, fault) for name in found[0][1]]
    assert any(shot is not None and shot.fired for shot in shots)


@pytest.mark.parametrize("name", sorted(UNTAKEN))
def test_untaken_faults_say_so(shooting, name):
    fault = load_fault(name)
    assert fault.blind(fault.smallest) is None
    assert not targets(shooting, fault, [fault.smallest], emulated_adapters())


@pytest.mark.parametrize("control", CONTROLS, ids=lambda f: f.name)
def test_no_control_fires(shooting, control):
    made = 0
    for case in VARIED:
        for name in emulated_adapters():
            if control.fits(name) and shooting.supports(case, name):
                shot = shooting.shoot(case, name, control)
                made += shot is not None
                assert shot is None or not shot.fired, (case.name, name, shot.fired)
    assert made


@pytest.mark.parametrize("case", VARIED, ids=lambda c: c.name)
def test_blind_faults_change_nothing(shooting, case):
    """A sample: where a fault says that a case cannot show it, nothing fires."""
    made = 0
    for fault in CATALOGUE[::2]:
        if fault.blind(case) is None:
            continue
        taking = [name for name in emulated_adapters() if fault.fits(name) and shooting.supports(case, name)]
        for name in taking[:2]:
            shot = shooting.shoot(case, name, fault)
            made += 1
            assert shot is None or not shot.fired, (fault.name, name, fault.blind(case), shot.fired)
    assert made


def test_a_hang_is_told_from_a_crash(shooting):
    hang, crash = load_fault("empty-kv-hangs"), load_fault("odd-group-decode-crashes")
    assert shooting.shoot(hang.smallest, "flash-attn-3@emulated", hang).fired == {TIMEOUT}
    assert shooting.shoot(crash.smallest, "flash-attn-3@emulated", crash).fired == {CRASH}


# -- several at once -----------------------------------------------------------------------------
def test_hooks_are_chained():
    hooks = Hooks()
    chain(hooks, "window", lambda request, left, right: (left + 1, right))
    chain(hooks, "window", lambda request, left, right: (2 * left, right + 5))
    assert hooks.window(None, 3, 0) == (8, 5)


def _out(case, name, fault):
    adapter, change = plant(name, fault)
    from cases.batch import build_batch

    batch = build_batch(case)
    plan = adapter.plan(batch)
    return adapter.run(plan if change is None else change(plan, batch), batch).out


def test_composed_faults_act_together():
    case = AttentionCase(requests=(Request(9, 3),), window_left=4, page_size=4)
    name = "flash-attn-3@emulated"
    window, offset = load_fault("window-one-too-wide"), load_fault("page-offset-dropped")
    both = load_fault("window-one-too-wide+page-offset-dropped")
    assert both.name == "window-one-too-wide+page-offset-dropped"
    assert both.fault_class is FaultClass.OTHER
    outs = [_out(case, name, fault) for fault in (window, offset, both)]
    assert not torch.equal(outs[2], outs[0])
    assert not torch.equal(outs[2], outs[1])


def test_faults_that_plan_anew_misread_in_turn():
    case = AttentionCase(requests=(Request(9, 3),), window_left=4)
    from cases.batch import build_batch

    batch = build_batch(case)
    adapter, change = plant("flash-attn-3@emulated", load_fault("window-one-too-wide+append-missing+scale-doubled"))
    plan = change(adapter.plan(batch), batch)
    assert plan.window_size == (5, 0)
    assert plan.softmax_scale == 2 * case.scale
    assert plan.append_slots is None


def test_composition_keeps_what_its_parts_say():
    two = compose(load_fault("window-ignored"), load_fault("window-of-first-row"))
    assert two.fault_class is FaultClass.WINDOW
    assert two.blind(AttentionCase(requests=(Request(3, 1),))) is not None
    assert two.fits("flash-attn-3@emulated")
    assert not two.fits("flashinfer-swa-merge@emulated")
    with pytest.raises(ValueError, match="two faults"):
        compose(load_fault("window-ignored"))


def test_unknown_and_unfit_faults_are_refused_in_one_sentence():
    with pytest.raises(UsageError, match="no fault 'nonsense'"):
        load_fault("window-ignored+nonsense")
    with pytest.raises(UsageError, match="emulated kernels"):
        plant("somewhere/mine.py:Mine", load_fault("page-offset-dropped"))


def test_a_fault_from_outside(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from harness.faults.protocol import Fault, FaultClass\n"
        "Mine = Fault('mine', FaultClass.OTHER, 'a fault of my own', on_plan=lambda plan, batch: plan)\n"
        "Other = 3\n"
    )
    assert load_fault(f"{tmp_path}/mine.py:Mine").name == "mine"
    with pytest.raises(UsageError, match="is int, not a"):
        load_fault(f"{tmp_path}/mine.py:Other")


def test_fault_is_a_value():
    fault = load_fault("window-ignored")
    assert isinstance(fault, Fault)
    with pytest.raises(AttributeError):
        fault.name = "other"
