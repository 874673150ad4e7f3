# SPDX-License-Identifier: Apache-2.0
"""In a container: what PyTorch's allocator does at the limit. torch_take.py LIMIT_BYTES MOST_BYTES.

The backend is chosen by PYTORCH_ALLOC_CONF, as its users do.
"""

import importlib
import sys
from typing import Any

from bench.gpu.talk import end, say

MIB = 1 << 20
PIECE_BYTES = 256 * MIB


def main() -> None:
    """Fill, free, go on."""
    limit_bytes, most_bytes = int(sys.argv[1]), int(sys.argv[2])
    torch: Any = importlib.import_module("torch")
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    before, (free_before, total) = say("before"), torch.cuda.mem_get_info()

    def take(size: int) -> Any:  # noqa: ANN401  a tensor, or the name of an exception
        try:
            return torch.empty(size, dtype=torch.uint8, device="cuda")
        except Exception as error:
            return f"{type(error).__module__}.{type(error).__name__}: {str(error).splitlines()[0]}"

    over = take(limit_bytes + 64 * MIB)
    over = over if isinstance(over, str) else "granted"
    torch.cuda.empty_cache()
    held: list[Any] = []
    refused = "nothing"
    while len(held) * PIECE_BYTES < most_bytes:
        piece = take(PIECE_BYTES)
        if isinstance(piece, str):
            refused = piece
            break
        held.append(piece)
    full = say("full")
    granted_bytes = len(held) * PIECE_BYTES
    held.clear()
    del piece
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    after, free_after = say("after"), torch.cuda.mem_get_info()[0]
    x = torch.randn(2048, 2048, device="cuda")
    torch.cuda.synchronize()
    end(
        {
            "torch": torch.__version__,
            "backend": torch.cuda.get_allocator_backend(),
            "total_bytes": total,
            "over": over,
            "refused": refused,
            "granted_bytes": granted_bytes,
            "before": before,
            "full": full,
            "after": after,
            "free": [free_before, free_after],
            "works_after": bool(torch.isfinite(x @ x).all()),
        }
    )


if __name__ == "__main__":
    main()
