# SPDX-License-Identifier: Apache-2.0
"""`vgpu-node-agent`: starts and stops the parts of the agent; alone in knowing them all."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import gc
import logging
import os
import random
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim import __version__
from runtime_shim.answers import RUNNING, AnswerStore
from runtime_shim.arbiter import LIBRARY_NAME, arbitrate
from runtime_shim.cache_client import CacheClient
from runtime_shim.calibration import Calibration
from runtime_shim.cards_in_use import CardsInUse
from runtime_shim.claims import Claims
from runtime_shim.config import DEFAULT_PATH, Config, load_config, render_config
from runtime_shim.counters import Counters
from runtime_shim.create import Creator, verdict_seconds
from runtime_shim.dependants import remove_unused_copies, remove_unused_versions
from runtime_shim.device_plugin.plugins import DevicePlugins
from runtime_shim.device_plugin.resources import resources_of
from runtime_shim.enforcement import Enforcer
from runtime_shim.errors import ConfigError, RefusedError, RuntimeShimError
from runtime_shim.health import Health
from runtime_shim.host import Host
from runtime_shim.inventory import Inventory, PyNvml
from runtime_shim.isolation import Isolation
from runtime_shim.kubelet import Kubelet
from runtime_shim.library import VerifiedCopies, copies_folders
from runtime_shim.log import configure_logging
from runtime_shim.meter import Meter
from runtime_shim.node_watch import NodeAnswers, PodLookup
from runtime_shim.probe import Probe
from runtime_shim.processes import boot_id
from runtime_shim.readings import remove_readings, write_readings
from runtime_shim.region import Regions
from runtime_shim.report_echo import ReportEcho
from runtime_shim.threads import in_thread
from runtime_shim.tls import CredentialsError, Proof, needs_proof
from runtime_shim.verdict import VerdictServer, listen
from runtime_shim.voucher import Voucher

logger = logging.getLogger(__name__)

# A create that hangs in a file system of its container holds a thread for as long; many more than
# the processors, so that others go on.
_THREADS = 64
_TICK_SECONDS = 1.0
# How long a create waits for a thread of ours to let go of the interpreter; Python's own 5 ms are
# more than the whole create takes.
_SWITCH_SECONDS = 0.0005
# Source: DESIGN, the agent reports on start, on change and at this interval.
_REPORT_SECONDS = 10.0
_CROWD_SECONDS = 0.2
_INVENTORY_SECONDS = 10.0
_FIRST_INVENTORY_SECONDS = 5.0
_FIRST_CALIBRATION_SECONDS = 5.0
_RECONNECT_SECONDS = (0.1, 2.0)
# The kubelet renews its certificate hours before the old one ends.
_RENEW_SECONDS = 5.0
# A create that was under way when the link was switched has mounted its library long before.
_UNUSED_LIBRARY_SECONDS = 600.0


class Agent:
    """The parts of one agent, wired together."""

    def __init__(self, config: Config) -> None:
        self._config = config
        paths = config.paths
        self._boot_id = boot_id()
        self._report_wanted = asyncio.Event()
        self._report_lock = asyncio.Lock()
        self._echo = ReportEcho(self._report_wanted.set)
        self._cache_connected = False
        self._readings_kept = True
        self.counters = Counters()
        in_cluster = config.mode == "kubernetes"
        proof = Proof(config.cache) if in_cluster and needs_proof(config.cache) else None
        self.cache = CacheClient(config.cache, config.node_name, proof)
        self.answers = NodeAnswers() if in_cluster else None
        self._follow_anew = asyncio.Event()
        driver = config.driver
        self.inventory = Inventory(PyNvml(driver.nvml_library, driver.unified_memory_bytes))
        self.host = Host(config.driver)
        self.store = AnswerStore(paths.state_dir / "answers")
        self.regions = Regions(paths.run_dir / "containers")
        self.claims = Claims(
            self.store,
            self.regions,
            self.cache,
            self._report_wanted.set,
            self.answers,
            card_bytes=lambda: self.inventory.card_bytes,
        )
        self.pods = None
        if self.answers is not None:
            self.pods = PodLookup(
                config, self.cache.node_name, self.answers, self.cache, self.store, self.counters
            )
        self.isolation = Isolation(self._report_wanted.set, time.monotonic)
        self.plugins = None
        self.cards_in_use = None
        voucher = None
        if in_cluster:
            kubelet = Kubelet(config.device_plugin.kubelet_dir)
            resources = resources_of(config.device_plugin)
            self.plugins = DevicePlugins(
                resources, kubelet, self._card_messages, self._report_wanted.set
            )
            own = frozenset(each.name for each in resources)
            voucher = Voucher(config.device_plugin, kubelet, own, self.inventory, self.host)
            self.cards_in_use = CardsInUse(
                config.device_plugin, kubelet, own, self.inventory, self._report_wanted.set
            )
        self.enforcer = Enforcer(config.policy, paths.library, paths.state_dir, self.counters)
        self.meter = Meter(self.claims, self.regions, self.inventory, self.enforcer, self.counters)
        self.installed = VerifiedCopies(paths.library, paths.state_dir)
        # From the library's own folder: the two are of one version.
        probe = Probe(partial(self.installed.beside, "vgpu-probe"), driver.library_dirs)
        self.calibration = Calibration(paths.state_dir / "contexts.json", probe, self.inventory)
        self.health = Health(self.inventory, probe, self._cards_changed, time.monotonic)
        self.creator = Creator(
            config,
            cache=self.cache,
            claims=self.claims,
            store=self.store,
            regions=self.regions,
            inventory=self.inventory,
            calibration=self.calibration,
            host=self.host,
            counters=self.counters,
            pods=self.pods,
            voucher=voucher,
            isolation=self.isolation,
            installed=self.installed,
        )

    async def prepare(self) -> None:
        """Read what an earlier agent left and what the host has, before anybody may ask."""
        self.regions.prepare()
        self.store.load()
        self.enforcer.remember_first_run()
        await self.claims.adopt()
        # Searches the driver, so that no create has to.
        self.calibration.load(await in_thread(self.host.driver_version))
        first = asyncio.create_task(self.inventory.refresh())
        await asyncio.wait({first}, timeout=_FIRST_INVENTORY_SECONDS)
        # A container that starts before its card is measured has its contexts for nothing until
        # then: on a node's very first start it waits, within the launcher's patience.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_CALIBRATION_SECONDS):
                await self.calibration.measure(self.inventory.healthy)
        if self.cards_in_use is not None:
            await self.cards_in_use.look()
        await self._try_to_report()

    async def serve(self, listener: socket.socket) -> None:
        """Do everything that never ends, until cancelled."""
        server = VerdictServer(listener, self.creator.create, verdict_seconds(self._config))
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve())
            group.create_task(self.claims.run())
            if self.answers is None:
                group.create_task(self._follow_cache())
            else:
                group.create_task(self._follow_cluster(self.answers))
                group.create_task(self._renew_forever())
            if self.plugins is not None:
                group.create_task(self.plugins.run())
            group.create_task(self._report_forever())
            if self.cards_in_use is not None:
                group.create_task(self.cards_in_use.watch())
            group.create_task(self._measure_forever())
            group.create_task(arbitrate(partial(self.installed.beside, LIBRARY_NAME), self.regions))
            group.create_task(self._look_for_cards())
            group.create_task(self.health.run())
            group.create_task(self._calibrate_forever())
            group.create_task(self._remove_old_libraries_forever())

    async def close(self) -> None:
        """Let go of everything; containers, their files and the answers stay."""
        self.claims.close()
        self.regions.close()
        self.inventory.close()
        remove_readings(self._config.paths.run_dir)
        await in_thread(self.store.sync)
        await self.cache.close()

    # Cache

    async def _follow_cache(self) -> None:
        """Keep a watch stream open. Each begins after a report: the cache may have lost its state,
        and its snapshot would make the node forget what only the node still knows.
        """
        first, longest = _RECONNECT_SECONDS
        pause = first
        while True:
            try:
                await self._report()
                async for event in self.cache.watch():
                    pause = first
                    await self._take(event)
                    self._cache_connected = True
            except RuntimeShimError as error:
                logger.warning("cache not reachable", extra={"reason": str(error)})
            except OSError as error:  # a full disk; the next snapshot is taken anew
                logger.error("change of the cache not taken", extra={"reason": str(error)})
            self._cache_connected = False
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, longest)

    async def _follow_cluster(self, answers: NodeAnswers) -> None:
        """Keep a watch stream of the cluster's cache open. Its snapshot is the cluster's own word,
        which needs no report of ours before it; each try may reach another replica.
        """
        first, longest = _RECONNECT_SECONDS
        pause = first
        while True:
            self._follow_anew.clear()
            stream = asyncio.create_task(self._watch_cluster(answers))
            anew = asyncio.create_task(self._follow_anew.wait())
            try:
                await asyncio.wait({stream, anew}, return_when=asyncio.FIRST_COMPLETED)
                if answers.live:
                    pause = first
            finally:
                stream.cancel()
                anew.cancel()
                await asyncio.wait({stream, anew})
            answers.lost()
            self._cache_connected = False
            if not stream.cancelled() and (error := stream.exception()) is not None:
                if not isinstance(error, RuntimeShimError | OSError):
                    raise error
                logger.warning("cache not followed", extra={"reason": str(error)})
                self.cache.reopen()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, longest)

    async def _watch_cluster(self, answers: NodeAnswers) -> None:
        async for event in self.cache.watch():
            match event.WhichOneof("event"):
                case "snapshot":
                    answers.replace(event.snapshot.allocations)
                case "upsert":
                    answers.upsert(event.upsert)
                case "remove":
                    answers.remove(event.remove)
            await self._take(event)
            if event.HasField("snapshot") and self.pods is not None:
                self.pods.confirm()
            self._cache_connected = True

    async def _renew_forever(self) -> None:
        """Take over what proves this node when it is renewed; say when it is not."""
        warned = ""
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            try:
                if await in_thread(self.cache.changed):
                    self.cache.renew()
                    logger.info("credentials renewed", extra={"node": self.cache.node_name})
                    self._listen_anew()
                trouble = self.cache.expiry_warning()
            except CredentialsError as error:
                trouble = str(error)
            if trouble and trouble != warned:
                logger.error("credentials", extra={"reason": trouble})
            warned = trouble

    def _listen_anew(self) -> None:
        """Leave the stream, which may come over a dead line, for one over a new connection."""
        if self.answers is not None:
            self.answers.lost()
            self._follow_anew.set()

    async def _take(self, event: pb.WatchNodeResponse) -> None:
        match event.WhichOneof("event"):
            case "snapshot":
                await self.claims.replace_all(event.snapshot.allocations)
                self.enforcer.take_snapshot()
            case "upsert":
                await self.claims.upsert(event.upsert)
            case "remove":
                await self.claims.drop(event.remove)

    async def _report_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REPORT_SECONDS):
                    await self._report_wanted.wait()
                    # Changes come in crowds, and a report lists every claim.
                    await asyncio.sleep(_CROWD_SECONDS)
            await self._try_to_report()
            try:
                await in_thread(self.store.sync)
            except OSError as error:
                logger.error("answers are not on the disk yet", extra={"reason": str(error)})

    async def _try_to_report(self) -> None:
        try:
            await self._report()
        except RuntimeShimError as error:
            logger.info("report not delivered", extra={"reason": str(error)})
            if self.answers is not None:
                # A line that is dead, or a replica that leads no more: the next one may be better.
                self.cache.reopen()
                self._listen_anew()

    async def _report(self) -> None:
        # One at a time: the cache believes the one that comes last.
        async with self._report_lock:
            self._report_wanted.clear()
            ready = await in_thread(self._ready)
            claims = self.claims.reports()
            running = [claim.allocation.allocation_id for claim in claims if claim.state == RUNNING]
            await self.cache.report(
                pb.ReportNodeRequest(
                    node_name=self.cache.node_name,
                    cards=self._card_messages(),
                    running_allocation_ids=running,
                    claims=claims,
                    ready=ready,
                    boot_id=self._boot_id,
                    agent_version=__version__,
                    isolation=self._isolation_messages(),
                    served_resources=self.plugins.served() if self.plugins else (),
                    whole_cards=self.cards_in_use.messages() if self.cards_in_use else (),
                    whole_cards_known=self.cards_in_use is None or self.cards_in_use.known,
                )
            )
            if self.answers is not None:
                self._echo.reported(running)

    def _isolation_messages(self) -> list[pb.ContainerIsolation]:
        if self.answers is None:
            return []
        return self.isolation.messages(answer.allocation for answer, _ in self.claims.running())

    def _card_messages(self) -> list[pb.Card]:
        return self.inventory.messages(self._config.policy.slots_per_card)

    def _ready(self) -> bool:
        try:
            self.installed.library()
        except (RefusedError, OSError):
            return False
        return True

    # Host

    async def _measure_forever(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            try:
                await self.meter.tick()
                await self._keep_readings()
            except Exception:  # a bad measurement must not end the signs of life of all others
                logger.exception("measuring failed")

    async def _keep_readings(self) -> None:
        """Leave the readings where `vgpuctl top` finds them."""
        folder, readings = self._config.paths.run_dir, self.meter.readings
        try:
            await in_thread(partial(write_readings, folder, readings))
        except OSError as error:  # a full /run; the next ones will do
            if self._readings_kept:
                logger.warning("readings not written", extra={"reason": str(error)})
            self._readings_kept = False
        else:
            self._readings_kept = True

    async def _look_for_cards(self) -> None:
        while True:
            await asyncio.sleep(_INVENTORY_SECONDS)
            try:
                changed = await self.inventory.refresh()
            except Exception:  # one odd card must not end the agent
                logger.exception("looking for cards failed")
                continue
            if changed:
                self._cards_changed()

    def _cards_changed(self) -> None:
        self._report_wanted.set()
        if self.plugins is not None:
            self.plugins.look()

    async def _calibrate_forever(self) -> None:
        """Measure new cards, and tell running containers what was not known when they started."""
        while True:
            try:
                await self.calibration.measure(self.inventory.healthy)
            except Exception:  # one odd card must not end the agent
                logger.exception("measuring contexts failed")
            for region in self.regions.all():
                uuids = [part.card_uuid for part in region.allocation.slices]
                region.set_context(self.calibration.context_bytes(uuids))
            await asyncio.sleep(_INVENTORY_SECONDS)

    async def _remove_old_libraries_forever(self) -> None:
        """Remove versions of the library that an upgrade left to containers, once those ended."""
        while True:
            await asyncio.sleep(_UNUSED_LIBRARY_SECONDS)
            try:
                removed = await in_thread(self._remove_old_libraries)
            except (RefusedError, OSError) as error:
                logger.warning("old libraries are not removed", extra={"reason": str(error)})
                continue
            if removed:
                logger.info("old libraries removed", extra={"versions": removed})

    def _remove_old_libraries(self) -> list[str]:
        paths = self._config.paths
        removed = remove_unused_versions(paths.library)
        copies = copies_folders(paths.library, paths.state_dir)
        return [*removed, *remove_unused_copies(copies, self.installed.library())]

    @contextlib.contextmanager
    def serving_metrics(self) -> Iterator[None]:
        """Serve /metrics meanwhile, where the configuration says so. Raises ConfigError."""
        if not self._config.metrics.listen:
            yield
            return
        # Five MiB that most hosts do without.
        try:
            from runtime_shim.metrics import MetricsServer, Sources
        except ModuleNotFoundError:
            # Debian's package recommends it alone: without it, too, containers get their slices.
            logger.error(
                "metrics are not served",
                extra={
                    "reason": "the Python package prometheus-client is not installed; "
                    "apt install python3-prometheus-client, then restart vgpu-node-agent"
                },
            )
            yield
            return

        server = MetricsServer(
            *self._config.metrics.host_port(),
            Sources(
                readings=lambda: self.meter.readings,
                counters=self.counters,
                nvml_errors=lambda: dict(self.inventory.errors),
                cache_connected=lambda: self._cache_connected,
                mode=self._config.mode,
                certificate_expires=lambda: self.cache.expires_unix_seconds,
                resources=self.plugins.registered if self.plugins is not None else dict,
            ),
        )
        logger.info("serving metrics", extra={"address": self._config.metrics.listen})
        try:
            yield
        finally:
            server.close()


async def serve(config: Config) -> None:
    """Serve launchers until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="vgpu"))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with _locked(config.paths.state_dir):
        agent = Agent(config)
        try:
            await agent.prepare()
            with agent.serving_metrics():
                async with _serving(agent, config):
                    # Everything that lives for long is made: leave it out of later collections.
                    gc.collect()
                    gc.freeze()
                    _notify("READY=1")
                    logger.info("serving", extra={"socket": str(config.paths.socket)})
                    await stop.wait()
                    logger.info("stopping")
        finally:
            await agent.close()


@contextlib.asynccontextmanager
async def _serving(agent: Agent, config: Config) -> AsyncIterator[None]:
    with listen(config.paths.socket) as listener:
        task = asyncio.create_task(agent.serve(listener))
        try:
            stopped = asyncio.ensure_future(asyncio.shield(task))
            stopped.add_done_callback(_end_on_failure)
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def _end_on_failure(task: asyncio.Future[None]) -> None:
    """End the process when a part has failed for good: systemd starts a new one."""
    if not task.cancelled() and task.exception() is not None:
        logger.critical("a part of the agent has failed", exc_info=task.exception())
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    """Hold the node's one agent lock; ConfigError when another agent has it."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        state_dir.chmod(0o700)
        file = open(state_dir / "lock", "a+")  # noqa: SIM115 - closed below
    except OSError as error:
        raise ConfigError(f"cannot use {state_dir}: {error.strerror}") from error
    with file:
        try:
            # A record lock: a child that outlives this process does not inherit it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another vgpu-node-agent uses {state_dir}; stop it first") from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n{__version__}\n")  # for vgpuctl status
        file.flush()
        yield


def _notify(state: str) -> None:
    """Tell systemd, if it asked to be told. Source: sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
        notifier.sendto(state.encode(), address.replace("@", "\0", 1))


def _raise_descriptor_limit() -> None:
    """Each container takes up to two descriptors; the default limit is made for select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


_CONFIG_OPTION = click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=DEFAULT_PATH,
    envvar="VGPU_CONFIG",
    show_default=True,
    show_envvar=True,
)


def _load(config_path: Path) -> Config:
    try:
        return load_config(config_path)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


@click.group()
@click.version_option(__version__)
def main() -> None:
    """Gives containers of this node their slices."""


@main.command()
@_CONFIG_OPTION
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text")
@click.option("--node-name", envvar="VGPU_NODE_NAME", help="Goes before node_name in the file.")
@click.option(
    "--cache-address",
    envvar="VGPU_CACHE_ADDRESS",
    help="Goes before cache.address in the file: a pod knows its Service's by a variable alone.",
)
def run(
    config_path: Path, log_format: str, node_name: str | None, cache_address: str | None
) -> None:
    """Serve until SIGTERM."""
    config = _load(config_path)
    if node_name:
        config = dataclasses.replace(config, node_name=node_name)
    if cache_address:
        try:
            cache = dataclasses.replace(config.cache, address=cache_address)
        except ConfigError as error:
            raise click.ClickException(str(error)) from error
        config = dataclasses.replace(config, cache=cache)
    if os.geteuid() != 0:
        raise click.ClickException("the node agent must run as root")
    configure_logging(log_format)
    _raise_descriptor_limit()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        asyncio.run(serve(config))
    except (RuntimeShimError, OSError) as error:
        raise click.ClickException(str(error)) from error


@main.command()
@_CONFIG_OPTION
def check_config(config_path: Path) -> None:
    """Check the configuration and print what would run."""
    click.echo(render_config(_load(config_path)), nl=False)


if __name__ == "__main__":
    main(prog_name="vgpu-node-agent")
