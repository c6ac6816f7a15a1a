"""Adapters that misbehave in one way each; all others of their answers are MyKernel's, which are right."""

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "examples"))

import torch
from my_kernel import MyKernel

from cases.schema import AttentionCase
from harness.api import AttentionOutput, Capabilities, Poison
from harness.running import examine, worker


class Exits(MyKernel):
    name = "exits"

    def run(self, plan, batch):
        sys.stderr.write("about to go\n")
        sys.stderr.flush()
        os._exit(3)


class Segfaults(MyKernel):
    name = "segfaults"

    def run(self, plan, batch):
        os.kill(os.getpid(), 11)


class ExitsOnSeed3(MyKernel):
    name = "exits-on-seed-3"

    def run(self, plan, batch):
        if batch.case.seed == 3:
            os._exit(4)
        return super().run(plan, batch)


class WrongOnSeed3(MyKernel):
    name = "wrong-on-seed-3"

    def run(self, plan, batch):
        good = super().run(plan, batch)
        return AttentionOutput(good.out * 2) if batch.case.seed == 3 else good


class Hangs(MyKernel):
    name = "hangs"

    def run(self, plan, batch):
        time.sleep(3600)


class Raises(MyKernel):
    name = "raises"

    def run(self, plan, batch):
        raise RuntimeError("not supported: out of memory")  # a text that must not become a skip


class ReturnsNan(MyKernel):
    name = "returns-nan"

    def run(self, plan, batch):
        super().run(plan, batch)
        return AttentionOutput(batch.empty_output())


class ReturnsZero(MyKernel):
    name = "returns-zero"

    def run(self, plan, batch):
        return AttentionOutput(batch.empty_output().zero_())


class WrongShape(MyKernel):
    name = "wrong-shape"

    def run(self, plan, batch):
        return AttentionOutput(super().run(plan, batch).out[:, :1])


class ReturnsTensor(MyKernel):
    name = "returns-tensor"

    def run(self, plan, batch):
        return super().run(plan, batch).out


def _shifted(case: AttentionCase, by: int) -> AttentionCase:
    return case if case.window_left is None else case.replace(window_left=case.window_left + by)


class WindowOneTooLong(MyKernel):
    name = "window-one-too-long"

    def run(self, plan, batch):
        batch.case = _shifted(batch.case, 1)
        return super().run(plan, batch)


class ReadsOneTooFar(MyKernel):
    """Adds nothing times the slot after the last key: right unless that slot is poison."""

    name = "reads-one-too-far"
    poison = Poison.FINITE

    def run(self, plan, batch):
        good = super().run(plan, batch)
        slot = plan[1][0]
        page = batch.page_table[0, slot // batch.case.page_size]
        leak = batch.v_pool[page, slot % batch.case.page_size].amax()
        return AttentionOutput(good.out + leak * 0.5)


class WrongAfterTheFirst(MyKernel):
    """Right in a fresh process, wrong for every later case: state that outlives a case."""

    name = "wrong-after-the-first"
    runs = 0

    def run(self, plan, batch):
        type(self).runs += 1
        good = super().run(plan, batch)
        return AttentionOutput(good.out + 1) if type(self).runs > 3 else good


class Prints(MyKernel):
    name = "prints"

    def run(self, plan, batch):
        print('{"record": "not a reply"}', flush=True)
        return super().run(plan, batch)


class NoName:
    def plan(self, batch):
        return None


class Forks(MyKernel):
    """Leaves a child that goes on as if it were the worker, and answers wrongly from the second case on."""

    name = "forks"
    runs = 0

    def run(self, plan, batch):
        type(self).runs += 1
        if type(self).runs == 1:
            os.fork()
        good = super().run(plan, batch)
        return AttentionOutput(good.out + 1) if type(self).runs > 2 else good


class LeavesAChild(MyKernel):
    """Starts a process that does nothing and outlasts the case, as a compiler or a server of a library's does."""

    name = "leaves-a-child"

    def run(self, plan, batch):
        if os.fork() == 0:
            time.sleep(3600)
        return super().run(plan, batch)


class ExitsPolitely(MyKernel):
    name = "exits-politely"

    def run(self, plan, batch):
        sys.exit(0)


class WrongDtype(MyKernel):
    name = "wrong-dtype"

    def run(self, plan, batch):
        return AttentionOutput(super().run(plan, batch).out.double())


class NoLegs(MyKernel):
    name = "no-legs"
    merge_legs = 0


class RaisesInALibrary(MyKernel):
    name = "raises-in-a-library"

    def run(self, plan, batch):
        return torch.nn.functional.softmax(batch.q, dim=17)  # the call that raises


class RaisesInARule(MyKernel):
    name = "raises-in-a-rule"
    capabilities = Capabilities(rules=(lambda case: 1 / 0,))


class RefusesWithoutAReason(MyKernel):
    name = "refuses-without-a-reason"
    capabilities = Capabilities(rules=(lambda case: "",))


class RefusesWithANumber(MyKernel):
    name = "refuses-with-a-number"
    capabilities = Capabilities(rules=(lambda case: 5,))


class LeavesADaemon(MyKernel):
    """Dies; what it started holds its pipes, outside its process group."""

    name = "leaves-a-daemon"

    def run(self, plan, batch):
        if os.fork() == 0:
            os.setsid()
            time.sleep(8)
            os._exit(0)
        os._exit(7)


class WritesToEveryPipe(MyKernel):
    name = "writes-to-every-pipe"

    def run(self, plan, batch):
        for descriptor in range(3, 20):
            with contextlib.suppress(OSError):
                os.write(descriptor, b'{"record": 1}\nhello\n')
        return super().run(plan, batch)


class KillsItsParent(MyKernel):
    name = "kills-its-parent"

    def run(self, plan, batch):
        os.kill(os.getppid(), 9)
        time.sleep(3600)


class Loops(MyKernel):
    name = "loops"

    def run(self, plan, batch):
        while True:
            pass


class RemovesItsFolder(MyKernel):
    name = "removes-its-folder"

    def run(self, plan, batch):
        folder = tempfile.mkdtemp()
        os.chdir(folder)
        os.rmdir(folder)
        raise ValueError("no folder")


class SetsDefaults(MyKernel):
    """Leaves torch with other defaults, and wants to find them as it left them."""

    name = "sets-defaults"
    ran = False

    def run(self, plan, batch):
        if self.ran:
            assert torch.zeros(1).device.type == "meta"
            assert torch.get_default_dtype() is torch.float16
        torch.set_default_device("cpu")
        good = super().run(plan, batch)
        torch.set_default_device("meta")
        torch.set_default_dtype(torch.float16)
        type(self).ran = True
        return good


class SpoilsItsProcess(MyKernel):
    """Raises on a seed of 3; from then on no batch can be built in the process, as after a CUDA fault."""

    name = "spoils-its-process"

    def run(self, plan, batch):
        if batch.case.seed == 3:
            raise_from_now_on(examine, "build_batch")
            raise RuntimeError("an illegal memory access was encountered")
        return super().run(plan, batch)


class LosesItsDevice(SpoilsItsProcess):
    """The same, and waiting for the device tells it."""

    name = "loses-its-device"

    def run(self, plan, batch):
        if batch.case.seed == 3:
            for module in (worker, sys.modules["__main__"]):  # which of the two a process runs, it chooses
                raise_from_now_on(module, "synchronize")
        return super().run(plan, batch)


def raise_from_now_on(module, name):
    def lost(*_arguments, **_more):
        raise RuntimeError("an illegal memory access was encountered")

    setattr(module, name, lost)
