"""What an adapter or a fault outside this project needs, in one import."""

from cases.batch import AttentionBatch
from cases.schema import AttentionCase, KvLayout, Mode, Poison
from harness.adapters.capabilities import Capabilities
from harness.adapters.protocol import PROTOCOL_VERSION, Adapter, AttentionOutput, EmptyRow, LseBase
from harness.faults.protocol import Fault, FaultClass

__all__ = [
    "PROTOCOL_VERSION",
    "Adapter",
    "AttentionBatch",
    "AttentionCase",
    "AttentionOutput",
    "Capabilities",
    "EmptyRow",
    "Fault",
    "FaultClass",
    "KvLayout",
    "LseBase",
    "Mode",
    "Poison",
]
