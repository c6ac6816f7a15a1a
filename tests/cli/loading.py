"""A file that ends, stops or hangs the process that imports it, as LOADING says; then an adapter and a fault."""

import os
import signal
import sys
import time
from pathlib import Path

if os.environ["LOADING"] == "exits as if all were right":
    os._exit(0)
if os.environ["LOADING"] == "kills":
    os.kill(os.getpid(), signal.SIGKILL)
if os.environ["LOADING"] == "hangs":
    time.sleep(600)
if os.environ["LOADING"] == "prints":
    print("not a part of any answer")

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))

from my_kernel import MyKernel  # noqa: F401
