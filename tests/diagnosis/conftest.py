import pytest
import torch

from harness.faults.registry import plant
from harness.faults.shots import Range
from harness.record import Record
from harness.running.examine import Examiner, Stopwatch
from harness.verdict import Verdict


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def shooting():
    return Range()


@pytest.fixture
def examiner_of():
    """examiner_of(case, adapter instance or name, fault=None)"""

    def make(case, adapter, fault=None):
        device = torch.device("cpu")
        change = None
        if isinstance(adapter, str):
            if fault is None:
                adapter = Range().adapter(adapter)
            else:
                adapter, change = plant(adapter, fault)
        return Examiner(case, adapter, device, Stopwatch(device, lambda stage: None), change)

    return make


@pytest.fixture
def wrong():
    """wrong(examiner): a record that says WRONG."""
    return lambda examiner: Record(examiner.case, examiner.adapter.name, Verdict.WRONG)
