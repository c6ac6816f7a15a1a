"""An outside adapter with a fault that an environment variable switches on: a window one key too long."""

import dataclasses
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))

from my_kernel import MyKernel


class Switchable(MyKernel):
    name = "switchable"

    def run(self, plan, batch):
        time.sleep(float(os.environ.get("SWITCHABLE_SLEEP", "0")))
        window_left = batch.case.window_left
        if "SWITCHABLE_FAULT" in os.environ and window_left is not None:
            batch = dataclasses.replace(batch, case=batch.case.replace(window_left=window_left + 1))
        return super().run(plan, batch)
