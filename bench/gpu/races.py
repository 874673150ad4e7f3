# SPDX-License-Identifier: Apache-2.0
"""Table: processes and threads that take and free at once, while the card is looked at."""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from bench.gpu.judge import HIDDEN_BYTES, MIB, Card, Sampler, Samples, ceiling_bytes
from bench.gpu.places import Place
from bench.gpu.table import Table, mib
from bench.gpu.talk import listen

# 16 contexts take half of the first; both are small enough to be full all the time.
LIMITS = {"processes": 16 << 30, "threads": 6 << 30, "pools": 6 << 30}
NAMES = {"processes": "processes", "threads": "threads", "pools": "threads, pools alone"}
ENDS = {"processes": "half are killed", "threads": "they end", "pools": "they end"}
AGREE_SECONDS = 2.0
# Between account and NVML, for a process: what a context and its streams cost differs a little.
AGREE_BYTES = 8 * MIB


class _Referee:
    """Looks at the card while a race says where it is."""

    def __init__(self, card: Card, place: Place, limit_bytes: int, processes: int) -> None:
        self._card = card
        self._account = place.account
        ceiling = ceiling_bytes(limit_bytes, processes)
        device_ceiling = ceiling + HIDDEN_BYTES * processes
        # While all race, and while half of them die: each with its own count.
        self.samples = {
            phase: Samples(limit_bytes, ceiling, device_ceiling) for phase in ("race", "kills")
        }
        self._sampler: Sampler | None = None
        self.states: dict[str, dict[str, Any]] = {}

    def answer(self, said: dict[str, Any]) -> dict[str, Any]:
        """Answer one line of the race."""
        what = said["what"]
        if what == "ready":
            self._sample("race")
        elif what == "raced":
            self._sample("kills")
        elif what == "held":
            self.abandon()
        if "count" in said and self._account is not None:
            self.states[what] = {**self._agree(int(said["count"])), "code": said.get("code", 0)}
        return {}

    def abandon(self) -> None:
        """Look no more."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None

    def _sample(self, phase: str) -> None:
        self.abandon()
        self._sampler = Sampler(self._card, self._account, self.samples[phase])
        self._sampler.start()

    def _agree(self, processes: int) -> dict[str, Any]:
        """Wait until account and NVML agree; how long it took, and what they say."""
        assert self._account is not None
        begun = time.monotonic()
        while True:
            account, nvml = self._account.used_bytes(), self._card.used_bytes()
            elapsed = time.monotonic() - begun
            if abs(account - nvml) <= AGREE_BYTES * processes or elapsed > AGREE_SECONDS:
                return {
                    "seconds": elapsed,
                    "account": account,
                    "nvml": nvml,
                    "overhead": self._account.overhead_bytes(),
                    "processes": processes,
                    "agree": abs(account - nvml) <= AGREE_BYTES * processes,
                }
            time.sleep(0.01)


def table_races(
    card: Card,
    inside: Callable[[str, int], AbstractContextManager[Place]],
    seconds: float,
    count: int = 16,
) -> Table:
    """Race in containers, which `inside` makes from a name and a limit in MiB."""
    table = Table(
        "races",
        f"Races of {seconds:g} s; MiB",
        (
            "race", "limit", "samples", "account > limit", "most account", "NVML's sum > ceiling",
            "ceiling",
            "most of NVML's sum", "card > ceiling", "most of the card", "granted", "refused (2)",
        ),
    )  # fmt: skip
    for kind, processes in (("processes", count), ("threads", 1), ("pools", 1)):
        limit_bytes = LIMITS[kind]
        with inside(f"race-{kind}", mib(limit_bytes)) as place:
            referee = _Referee(card, place, limit_bytes, processes)
            words = ["-m", "bench.gpu.race", kind, str(count), str(seconds)]
            try:
                codes = listen(place.start([sys.executable, *words]), referee.answer)
            finally:
                referee.abandon()
        others = {code: number for code, number in codes.items() if code not in ("0", "2")}
        table.raw[kind] = {"codes": codes, "states": referee.states}
        for phase, seen in referee.samples.items():
            if seen.count == 0:
                continue
            name = f"{count} {NAMES[kind]}" + (f", {ENDS[kind]}" if phase == "kills" else "")
            table.raw[kind][phase] = vars(seen)
            table.rows.append(
                [
                    name,
                    mib(limit_bytes),
                    seen.count,
                    seen.account_above,
                    mib(seen.account_high),
                    seen.nvml_above,
                    mib(seen.ceiling_bytes),
                    mib(seen.nvml_high),
                    seen.device_above,
                    mib(seen.device_high),
                    codes.get("0", 0),
                    codes.get("2", 0),
                ]
            )
            for what, above in (
                ("account > limit", seen.account_above),
                ("NVML's sum > ceiling", seen.nvml_above),
                ("the whole card > ceiling", seen.device_above),
            ):
                table.check(
                    f"{name}: samples with {what}",
                    "0",
                    f"{above} of {seen.count}",
                    holds=above == 0,
                )
        table.check(
            f"{count} {NAMES[kind]}: codes", "0 and 2", str(others or "0 and 2"), holds=not others
        )
        for name, state in referee.states.items():
            table.check(
                f"{count} {NAMES[kind]}, {name}: account against NVML,"
                f" {state['processes']} processes",
                f"within {AGREE_SECONDS:g} s",
                f"{state['account'] / MIB:,.1f} and {state['nvml'] / MIB:,.1f} MiB"
                f" after {state['seconds'] * 1000:.0f} ms; the agent adds"
                f" {state['overhead'] / MIB:,.1f}; code {state['code']}",
                holds=state["agree"] and state["code"] == 0,
            )
    return table
