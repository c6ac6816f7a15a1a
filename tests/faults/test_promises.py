"""What docs/faults.md promises of the smoke suite. Minutes long."""

import pytest

from cases.suites import load_suite
from harness.diagnosis.blame import blame_all
from harness.faults.catalogue import CATALOGUE, CONTROLS
from harness.faults.sensitivity import measure_all
from harness.faults.shots import emulated_adapters


@pytest.mark.nightly
def test_smoke_catches_every_fault_it_can_see_and_no_control():
    specs = [fault.name for fault in (*CATALOGUE, *CONTROLS)]
    results = measure_all(specs, load_suite("smoke"), emulated_adapters(), processes=2)
    assert [r.fault for r in results if not r.as_it_should] == []
    assert sum(r.caught > 0 for r in results) >= 100


@pytest.mark.nightly
def test_the_diagnosis_names_what_was_planted():
    specs = [fault.name for fault in CATALOGUE]
    told = blame_all(specs, load_suite("smoke"), emulated_adapters(), processes=2)
    assert len({b.fault for b in told}) >= 100
    assert sum(b.right for b in told) >= 0.9 * len(told)
    assert sum(b.classed for b in told) >= 0.97 * len(told)
