"""Run an engine process from start to end."""

from collections.abc import Mapping, Sequence

from broadside.agent.engine_process import (
    EngineProcess,
    OnLine,
    ProcessExit,
    ProcessSetup,
    StopRules,
)


async def run_engine(
    argv: Sequence[str],
    *,
    on_line: OnLine,
    deadline_at_s: float | None,
    hard_stop_at_s: float | None = None,
    env: Mapping[str, str] | None = None,
) -> ProcessExit:
    """Spawn the engine and wait for its exit. Raises ``EngineUnusable`` if it cannot start."""
    process = await EngineProcess.spawn(
        argv,
        on_line=on_line,
        stop=StopRules(deadline_at_s=deadline_at_s, hard_stop_at_s=hard_stop_at_s),
        setup=ProcessSetup(env=env),
    )
    return await process.wait()
