"""Numbers among an engine's own options: a flag, which Python takes for 0 or 1, is none."""

from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError


def _refuse_flag(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("flag", "Input should be a number")
    return value


Whole = Annotated[int, BeforeValidator(_refuse_flag)]
Number = Annotated[float, BeforeValidator(_refuse_flag)]
