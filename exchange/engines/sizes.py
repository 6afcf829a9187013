"""The sizes of what download engines fetch: servers keep one sparse file of each."""

from collections.abc import Iterator
from typing import Final

from exchange.engines.port import File

FOLDER: Final = "files"
LEAST_BYTES: Final = 1_000
MOST_BYTES: Final = 100_000_000_000

SIZES_BYTES: Final = tuple(
    sorted(
        size
        for size in (
            *(2**power for power in range(64)),
            *(digit * 10**power for power in range(18) for digit in (1, 2, 5)),
        )
        if LEAST_BYTES <= size <= MOST_BYTES
    )
)


def size_problem(field: str, size_bytes: int) -> str | None:
    """What is wrong with a size, as ``field: problem; fix``; None: it is one of them."""
    if size_bytes in SIZES_BYTES:
        return None
    near = min(SIZES_BYTES, key=lambda size: abs(size - size_bytes))
    return (
        f"{field}: no server keeps {size_bytes} bytes; set 1, 2 or 5 times a power of ten or a "
        f"power of two, {LEAST_BYTES} to {MOST_BYTES}, such as {near}"
    )


def files() -> Iterator[File]:
    """Every one of them: sparse, so they take an inode each and no room."""
    return (File(name=f"{FOLDER}/{size}", size_bytes=size) for size in SIZES_BYTES)
