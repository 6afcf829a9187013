"""What agents say of themselves, and of the tunnels between them."""

from collections.abc import Sequence

from exchange.messages import Presence, Role, Tunnel, plain_text
from exchange.ports import Table
from exchange.records.keys import ANSWER, ASK, PRESENCE, tunnel_key, tunnels_partition
from exchange.rows import make_row, message_row, try_row


class FleetRecords:
    """Rows of the table *results*."""

    def __init__(self, table: Table) -> None:
        self._table = table

    async def beat(self, presence: Presence) -> None:
        """Create or replace an agent's row."""
        key = f"{presence.role}.{presence.agent_id}"
        await self._table.upsert(message_row(PRESENCE, key, presence))

    async def leave(self, role: Role, agent_id: str) -> None:
        """Remove an agent's row: it said goodbye."""
        await self._table.delete(PRESENCE, f"{role}.{agent_id}")

    async def read_presences(self) -> Sequence[Presence]:
        """Every row, also stale ones: judge by ``beat_at``.

        A row that cannot be read, as an agent of another version may write, is logged and left
        out: one such agent must not stop the rest of the fleet. So is one under another agent's
        name.
        """
        found = [(row.row_key, try_row(Presence, row)) async for row in self._table.scan(PRESENCE)]
        return [p for key, p in found if p is not None and key == f"{p.role}.{p.agent_id}"]

    async def save_tunnel(self, server_id: str, tunnel: Tunnel) -> None:
        """Ask a server's agent for the other end of a tunnel, or say that it is still wanted."""
        await self._table.upsert(
            message_row(tunnels_partition(server_id), tunnel_key(ASK, tunnel), tunnel)
        )

    async def read_tunnels(self, server_id: str) -> Sequence[Tunnel]:
        """What is asked of a server's agent; several jobs may ask for one id."""
        rows = self._table.scan(
            tunnels_partition(server_id), row_from=f"{ASK}.", row_before=f"{ASK}.:"
        )
        found = [try_row(Tunnel, row) async for row in rows]
        return [tunnel for tunnel in found if tunnel is not None]

    async def answer_tunnel(self, server_id: str, tunnel: Tunnel, problem: str) -> None:
        """Say that the other end stands (an empty problem), or why it does not."""
        key = tunnel_key(ANSWER, tunnel)
        await self._table.upsert(make_row(tunnels_partition(server_id), key, {"problem": problem}))

    async def read_tunnel_answer(self, server_id: str, tunnel: Tunnel) -> str | None:
        """The problem, empty where there is none; None: no answer to this job yet."""
        row = await self._table.get(tunnels_partition(server_id), tunnel_key(ANSWER, tunnel))
        return None if row is None else plain_text(str(row.properties.get("problem")), 300)

    async def drop_tunnel(self, server_id: str, tunnel: Tunnel) -> None:
        """This job wants it no more; what another asked for under the same id stays."""
        for kind in (ASK, ANSWER):
            await self._table.delete(tunnels_partition(server_id), tunnel_key(kind, tunnel))
