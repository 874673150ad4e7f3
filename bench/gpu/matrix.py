# SPDX-License-Identifier: Apache-2.0
"""Tables: every allocating family by the driver, by each cudart and by PyTorch, at its limit."""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.gpu.judge import MIB, Card, ceiling_bytes
from bench.gpu.places import Place
from bench.gpu.table import Table, mib
from bench.gpu.talk import listen

OUT_OF_MEMORY = 2
# Bare, nothing refuses: so much above the limit is enough to see it.
MOST_ABOVE = 1.25
BACKENDS = {
    "native": "",
    "native, expandable segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}


def _look(card: Card, place: Place) -> dict[str, Any]:
    account = place.account
    return {
        "nvml": card.used_bytes(),
        "account": account.used_bytes() if account is not None else None,
    }


def _looker(card: Card, place: Place) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda said: _look(card, place)


def _take(card: Card, place: Place, which: str, limit_bytes: int) -> Any:  # noqa: ANN401  JSON
    words = [which, str(limit_bytes), str(int(limit_bytes * MOST_ABOVE))]
    process = place.start([sys.executable, "-m", "bench.gpu.take", *words])
    return listen(process, _looker(card, place))


def _family_row(place: Place, row: dict[str, Any], limit_bytes: int) -> tuple[list[Any], bool]:
    """Return the cells of one family, and whether it is as promised."""
    if "error" in row:
        return [row["family"], place.name, row["error"], *[None] * 8], False
    full, before, after = row["full"], row["before"], row["after"]
    account = full["account"]
    beyond = None if account is None else full["nvml"] - account
    back = after["nvml"] - before["nvml"]
    holds = (
        row["over"] in (None, OUT_OF_MEMORY)
        and row["refused"] == OUT_OF_MEMORY
        and row["granted_bytes"] > 0
        and row["freed"] == 0
        and row["cycles"] == 30
        and full["nvml"] <= ceiling_bytes(limit_bytes, 1)
        and back <= 2 * MIB
        and row["free"][2] >= row["free"][0] - 2 * MIB
    )
    cells = [
        row["family"],
        place.name,
        "n/a" if row["over"] is None else row["over"],
        row["refused"],
        mib(row["granted_bytes"]),
        mib(full["nvml"]),
        None if account is None else mib(account),
        None if beyond is None else mib(beyond),
        row["freed"],
        mib(back),
        f"{row['cycles']} ({row['cycle_code']})",
    ]
    return cells, holds


def _unseen(row: dict[str, Any]) -> int:
    """Return what the card has less than the account says, before anything was waited for."""
    return int(row["unsettled"]["nvml"] - row["unsettled"]["account"])


def table_matrix(
    card: Card,
    places: Sequence[Place],
    apis: Iterable[tuple[str, str]],
    limit_bytes: int,
) -> Table:
    """Try every family in every place; `apis` are (name, what take.py is given)."""
    table = Table(
        "matrix",
        f"Every allocating call, limit {mib(limit_bytes)} MiB; MiB",
        (
            "family", "variant", "limit + 64 at once", "one piece more", "granted", "NVML, full",
            "account, full", "NVML - account", "free", "NVML kept", "30 cycles",
        ),
    )  # fmt: skip
    for api, which in apis:
        seen = {place.name: _take(card, place, which, limit_bytes) for place in places}
        table.raw[api] = seen
        held, count = 0, 0
        for place in places:
            for row in seen[place.name]["families"]:
                cells, holds = _family_row(place, row, limit_bytes)
                table.rows.append([f"{api}: {cells[0]}", *cells[1:]])
                if place.name == "vgpu":
                    count += 1
                    held += holds
        bare = {row["pair"]: row["codes"] for row in seen["bare"]["crossings"]}
        crossed = [
            f"{row['pair']}: {row['codes']}, {mib(row['lost_bytes'])} MiB lost,"
            f" {mib(_unseen(row))} MiB not in the account before a wait"
            for row in seen["vgpu"]["crossings"]
            if row["codes"] != bare[row["pair"]]
            or row["lost_bytes"] > 2 * MIB
            or _unseen(row) > 2 * MIB
        ]
        table.check(
            f"{api}: families refused with 2 above, granted below, given back",
            f"{count} of {count}",
            f"{held} of {count}",
            holds=held == count,
        )
        table.check(
            f"{api}: {len(bare)} frees by another family's call",
            "as bare, nothing lost",
            "; ".join(crossed) or "as bare, nothing lost",
            holds=not crossed,
        )
    return table


def table_torch(card: Card, places: Sequence[Place], limit_bytes: int) -> Table:
    """Try PyTorch's three allocators in every place."""
    table = Table(
        "torch",
        f"PyTorch, limit {mib(limit_bytes)} MiB; MiB",
        (
            "allocator", "variant", "limit + 64 at once", "one piece more", "granted", "NVML, full",
            "account, full", "NVML kept", "goes on",
        ),
    )  # fmt: skip
    for name, configuration in BACKENDS.items():
        for place in places:
            process = place.start(
                [
                    sys.executable, "-m", "bench.gpu.torch_take",
                    str(limit_bytes), str(int(limit_bytes * MOST_ABOVE)),
                ],
                {
                    "PYTORCH_CUDA_ALLOC_CONF": configuration,
                    "PYTORCH_ALLOC_CONF": configuration,
                },
            )  # fmt: skip
            seen = listen(process, _looker(card, place))
            table.raw[f"{name}, {place.name}"] = seen
            back = seen["after"]["nvml"] - seen["before"]["nvml"]
            account = seen["full"]["account"]
            table.rows.append(
                [
                    name,
                    place.name,
                    seen["over"].partition(":")[0],
                    seen["refused"].partition(":")[0],
                    mib(seen["granted_bytes"]),
                    mib(seen["full"]["nvml"]),
                    None if account is None else mib(account),
                    mib(back),
                    str(seen["works_after"]),
                ]
            )
            if place.name == "vgpu":
                refusals = {seen[key].partition(":")[0] for key in ("over", "refused")}
                right = (
                    {word.rpartition(".")[2] for word in refusals} == {"OutOfMemoryError"}
                    and seen["full"]["nvml"] <= ceiling_bytes(limit_bytes, 1)
                    and back <= 2 * MIB
                    and seen["works_after"]
                )
                table.check(
                    f"PyTorch {seen['torch']}, {name}",
                    "OutOfMemoryError, given back, goes on",
                    f"{', '.join(sorted(refusals))}, {mib(back)} MiB kept",
                    holds=right,
                )
    return table


def cudarts(folders: Sequence[Path]) -> list[tuple[str, str]]:
    """Return (name, path) of every libcudart in the folders."""
    found = sorted(path for folder in folders for path in folder.glob("libcudart.so.*[0-9]"))
    return [("cudart " + path.name.partition(".so.")[2], str(path.resolve())) for path in found]
