import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Small kernels are slower on many threads, and tests run beside each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
