"""A PNG of a matrix of colours: what an SVG needs to show a heat map without a thousand rectangles.

Portable Network Graphics, W3C recommendation of 10 November 2003, sections 5 (chunks), 9 (filter 0)
and 11.2: 8-bit RGBA, no interlace.
"""

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """RGBA pixels of shape (rows, columns, 4) as a ``data:`` address."""
    rows, columns, _ = pixels.shape
    head = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    filtered = np.concatenate(
        (np.zeros((rows, 1), np.uint8), pixels.reshape(rows, columns * 4)), axis=1
    )
    body = zlib.compress(filtered.tobytes(), 9)
    png = (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def colourise(
    cells: NDArray[np.float64], top: float, scale: Sequence[tuple[float, str]]
) -> NDArray[np.uint8]:
    """Cells of 0..top as RGBA along ``scale``; NaN is transparent. Shape (rows, columns, 4)."""
    share = np.nan_to_num(cells / top if top > 0 else cells * 0.0).clip(0, 1)
    stops = [stop for stop, _ in scale]
    channels = [
        np.interp(share, stops, [int(colour[1 + 2 * c : 3 + 2 * c], 16) for _, colour in scale])
        for c in range(3)
    ]
    alpha = np.where(np.isnan(cells), 0, 255)
    return np.stack([*channels, alpha], axis=-1).round().astype(np.uint8)
