"""A simulated GPU driver: `libcuda.so.1` and `libnvidia-ml.so.1` that many processes share as the
same cards, and `SimulatedGpu`, which creates the cards and sees the truth about them.

    gpu = SimulatedGpu.create(tmp_path, cards=[Card(memory_bytes=8 << 30)])
    subprocess.run(program, env={**os.environ, **gpu.environment()})
    gpu.used_bytes(0)

The libraries find the cards in the directory of the environment variable `FAKE_GPU_DIR`, or in
`/run/fakegpu`; containers get that directory mounted read-write.
"""

from tests.fakes.gpu.description import H100, Card, Description, MigInstance
from tests.fakes.gpu.simulated_gpu import LIBRARY_DIRECTORY, GpuProcess, SimulatedGpu

__all__ = [
    "H100",
    "LIBRARY_DIRECTORY",
    "Card",
    "Description",
    "GpuProcess",
    "MigInstance",
    "SimulatedGpu",
]
