"""Make simulated cards by hand, or show who uses them:

python -m tests.fakes.gpu create DIRECTORY [gpu.json]
python -m tests.fakes.gpu show DIRECTORY
"""

import sys
from pathlib import Path

from tests.fakes.gpu import Description, SimulatedGpu


def _show(gpu: SimulatedGpu) -> None:
    for index, card in enumerate(gpu.description.cards):
        used = gpu.used_bytes(index) >> 20
        print(f"card {index}  {card.uuid}  {card.model}  {used} of {card.memory_bytes >> 20} MiB")
        for process in gpu.processes():
            if process.memory_bytes[index]:
                mebibytes = process.memory_bytes[index] >> 20
                print(f"  pid {process.pid}  {process.name}  {mebibytes} MiB")


def main(arguments: list[str]) -> int:
    """Run one command; the exit status."""
    match arguments:
        case ["create", directory]:
            _show(SimulatedGpu.from_description(Path(directory), Description()))
        case ["create", directory, description]:
            loaded = Description.load(Path(description))
            _show(SimulatedGpu.from_description(Path(directory), loaded))
        case ["show", directory]:
            _show(SimulatedGpu(Path(directory)))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
