"""What is tested: cases (no tensors), the data they stand for, and the batches that make them real."""

from cases.errors import CaseError
from cases.schema import AttentionCase, Execution, Mode, PageOrder, Poison, Request

__all__ = ["AttentionCase", "CaseError", "Execution", "Mode", "PageOrder", "Poison", "Request"]
