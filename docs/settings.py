"""Writes README's settings table from the settings themselves: ``python docs/settings.py``."""

from pathlib import Path

from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from agent.agent_settings import AgentSettings
from coordinator.auth.signin_settings import SignInSettings
from coordinator.coordinator_settings import CoordinatorSettings
from exchange.fabric import FabricSettings

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- settings: begin -->", "<!-- settings: end -->"
CLASSES: tuple[tuple[str, type[BaseSettings]], ...] = (
    ("Fabric: where coordinator and agents meet (set on both)", FabricSettings),
    ("Coordinator", CoordinatorSettings),
    ("Coordinator: sign-in and limits", SignInSettings),
    ("Agent", AgentSettings),
)


def table() -> str:
    """Every setting as Markdown: environment variable, default, meaning."""
    parts = []
    for title, settings in CLASSES:
        prefix = settings.model_config.get("env_prefix", "")
        parts.append(f"\n**{title}**\n\n| variable | default | meaning |\n| --- | --- | --- |")
        for name, field in settings.model_fields.items():
            default = field.default
            shown = (
                ("see meaning" if field.default_factory else "required")
                if default is PydanticUndefined
                else "unset"
                if default is None
                else f"`{_plain(default)}`"
            )
            parts.append(f"| `{(prefix + name).upper()}` | {shown} | {field.description} |")
    return "\n".join(parts) + "\n"


def _plain(default: object) -> str:
    if isinstance(default, tuple):
        return ",".join(str(part) for part in default)
    return str(getattr(default, "value", default))


def renewed(readme: str) -> str:
    """The README with its table made anew."""
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    README.write_text(renewed(README.read_text(encoding="utf-8")), encoding="utf-8")
