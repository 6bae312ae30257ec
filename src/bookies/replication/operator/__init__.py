"""Operations started by operators: status, repair, drain, balance."""

from __future__ import annotations

from bookies.replication.operator.balance import Balance
from bookies.replication.operator.drain import Drain
from bookies.replication.operator.manual_repair import ManualRepair
from bookies.replication.operator.operator_parts import Operator

__all__ = ["Balance", "Drain", "ManualRepair", "Operator"]
