"""PNG files from arrays of pixels, and back."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from agentgym_envs.util.installation import install


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    """Encode a uint8 array of shape (height, width, 3) as PNG. Needs no package for images."""
    height, width, _ = pixels.shape
    rows = np.pad(pixels.reshape(height, width * 3), ((0, 0), (1, 0)))  # filter type 0 (none) before each row
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def pixels(png: bytes) -> NDArray[np.uint8]:
    """Decode a PNG to an array of shape (height, width, 3).

    Raises:
        DependencyNotInstalled: if Pillow is missing.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise DependencyNotInstalled(f"Images need the package pillow. Install it: {install('pillow')}") from error
    with Image.open(io.BytesIO(png)) as picture:
        return np.asarray(picture.convert("RGB"))
