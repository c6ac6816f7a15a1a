"""One torch thread: the batches are small, and waiting threads cost more than they compute."""

import torch

torch.set_num_threads(1)
