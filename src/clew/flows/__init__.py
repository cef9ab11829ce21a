"""What the faces do, written once: steps for a driver that waits in its own way. No database is touched here."""

from clew.flows.checkpoints import Flows, repeatable
from clew.flows.core import Leases, core_for, schema_step
from clew.flows.documented import documented_by
from clew.flows.hosting import HostMemories
from clew.flows.steps import Core, Flow, Step, Turn
from clew.flows.turns import Turns

__all__ = [
    "Core",
    "Flow",
    "Flows",
    "HostMemories",
    "Leases",
    "Step",
    "Turn",
    "Turns",
    "core_for",
    "documented_by",
    "repeatable",
    "schema_step",
]
