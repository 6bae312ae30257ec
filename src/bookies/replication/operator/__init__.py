"""Operations started by operators: status, repair, drain."""

from __future__ import annotations

from bookies.replication.base.operator_parts import Operator
from bookies.replication.operator.drain import Drain
from bookies.replication.operator.manual_repair import ManualRepair

__all__ = ["Drain", "ManualRepair", "Operator"]
