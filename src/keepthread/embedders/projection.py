"""From a model's many dimensions to a few: by a matrix of chance that is the same everywhere.

A random orthogonal matrix keeps angles nearly as they are, whatever the model, and there is nothing
to learn or to ship. It is drawn from the raw bits of a generator, which NumPy promises never to
change; how it spreads bits over a bell curve may change with its versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VERSION: Final = 1
"""Another matrix makes other vectors: count up, and everything is embedded anew."""
DIMENSIONS: Final = 128
_SEED: Final = 20_240_601
_BLOCK: Final = 8


def matrix(hidden: int) -> NDArray[np.float32]:
    """Return the matrix for a model of so many dimensions, with orthogonal columns of length 1."""
    import numpy as np  # noqa: PLC0415 - an optional package

    few = min(hidden, DIMENSIONS)
    raw = np.random.PCG64(_SEED).random_raw(hidden * few)
    spread = (np.asarray(raw, np.uint64) >> np.uint64(11)).astype(np.float64) / (1 << 53) - 0.5
    columns, triangle = np.linalg.qr(spread.reshape(hidden, few))
    # Libraries of linear algebra may turn a column round; a rule settles which way it points.
    return (columns * np.sign(np.diagonal(triangle))).astype(np.float32)


def projected(vectors: NDArray[np.float32], onto: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors in fewer dimensions, at length 1."""
    import numpy as np  # noqa: PLC0415 - an optional package

    # In small blocks, for which no library of linear algebra wakes further threads: on busy cores
    # they make a product of this size thirty times as slow.
    unit = normalised(vectors)
    blocks = [unit[start : start + _BLOCK] @ onto for start in range(0, len(unit), _BLOCK)]
    return normalised(np.concatenate(blocks))


def normalised(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors at length 1; one without a direction stays as it is."""
    import numpy as np  # noqa: PLC0415 - an optional package

    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    return vectors / np.maximum(lengths, np.float32(1e-12))


def in_bytes(vectors: NDArray[np.float32]) -> bytes:
    """Return vectors of length 1 as an embedding writes them."""
    import numpy as np  # noqa: PLC0415 - an optional package

    return np.rint(vectors * np.float32(127)).astype(np.int8).tobytes()
