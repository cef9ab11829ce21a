"""${message}.

Revises ${down_revision | comma,n}. Afterwards: add the id to ``REVISIONS`` in ``clew.migrate``.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade(op: Operations, schema: str | None) -> None:
    ${upgrades if upgrades else "pass"}


def downgrade(op: Operations, schema: str | None) -> None:
    ${downgrades if downgrades else "pass"}
