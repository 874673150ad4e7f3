# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from runtime_shim.config import Config, load_config, render_config
from runtime_shim.errors import ConfigError


def load(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    return load_config(path)


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, "")

    assert config == Config()
    assert config.mode == "local"
    assert config.paths.socket == Path("/run/vgpu/agent.sock")


def test_a_file_sets_what_it_names(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        'node_name = "n1"\n[paths]\nrun_dir = "/tmp/r"\n[cache]\ntry_seconds = 1\n'
        '[driver]\ncdi_dirs = ["/x"]\n[gpu_runtime]\nenabled = true\n'
        '[policy]\nunmanaged = "allow"\n',
    )

    assert config.node_name == "n1"
    assert config.paths.run_dir == Path("/tmp/r")
    assert config.cache.try_seconds == 1.0
    assert config.driver.cdi_dirs == (Path("/x"),)
    assert config.gpu_runtime.enabled
    assert config.policy.unmanaged == "allow"


def test_what_is_printed_gives_the_same_configuration_again(tmp_path: Path) -> None:
    config = load(tmp_path, 'node_name = "n\\"1"\n[policy]\ndriver_capabilities = ["video"]\n')

    assert load(tmp_path, render_config(config)) == config


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("modus = 1", "unknown key modus"),
        ("[paths]\nsockets = 1", "unknown key paths.sockets"),
        ("paths = 1", "paths must be a table"),
        ('[paths]\nrun_dir = "relative"', "paths.run_dir must be an absolute path"),
        ("node_name = 1", "node_name must be a string"),
        ('node_name = ""', "node_name is empty"),
        ('[gpu_runtime]\nenabled = "yes"', "gpu_runtime.enabled must be true or false"),
        ("[policy]\nslots_per_card = 1.5", "policy.slots_per_card must be a whole number"),
        ("[policy]\nslots_per_card = 0", "slots_per_card must be 1..1024"),
        ("[policy]\nslots_per_card = true", "policy.slots_per_card must be a whole number"),
        (
            '[device_plugin]\ndialects = ["nvidia"]',
            "device_plugin.dialects must be one of",
        ),
        ('[device_plugin]\ndialects = ["hami", "hami"]', "device_plugin.dialects names one twice"),
        ("[device_plugin]\nvolcano_memory_factor = 0", "volcano_memory_factor must be 1..1048576"),
        (
            '[device_plugin]\nwhole_card_resources = ["*"]',
            "holds DOMAIN/NAME patterns of other plugins' resources, not '*'",
        ),
        ("[driver]\nunified_memory_bytes = -1", "unified_memory_bytes must be 0 or more"),
        ('[policy]\nover_limit = "warn"', "policy.over_limit must be one of event, kill"),
        ("[policy]\nover_limit_seconds = 0", "policy.over_limit_seconds must be 1..3600"),
        ("[policy]\nunhooked = true", "policy.unhooked must be a string"),
        ('[policy]\nforeign = "kill"\nunmanaged = "allow"', "policy.foreign = kill would end"),
        ('[policy]\nunmanaged = "maybe"', "policy.unmanaged must be one of void, allow"),
        ('[policy]\ndriver_capabilities = ["all"]', "policy.driver_capabilities must name"),
        ('[metrics]\nlisten = "9482"', "metrics.listen must be ADDRESS:PORT"),
        ('[metrics]\nlisten = "127.0.0.1:http"', "metrics.listen must be ADDRESS:PORT"),
        ("[cache]\ntry_seconds = 9", "try_seconds <= total_seconds"),
        ("[driver]\ncdi_dirs = 1", "driver.cdi_dirs must be a list"),
        ('[policy]\ndeny = ["variables"]', "policy.deny must be one of audit, cdi"),
        ('[policy]\nunmanaged_allow = ["gpu-operator"]', "holds NAMESPACE/POD patterns"),
        ('[cache]\nca = "ca.pem"', "cache.ca must be an absolute path"),
        ('[cache]\naddress = "$(CACHE_SERVICE_HOST):9402"', "no Service of that name was there"),
        ('mode = "both"', "mode must be one of local, kubernetes"),
        ("= 1", "is not TOML"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("listen", "host"), [("127.0.0.1:9482", "127.0.0.1"), ("[::1]:9482", "::1"), ("h:9482", "h")]
)
def test_the_address_of_metrics_has_two_parts(tmp_path: Path, listen: str, host: str) -> None:
    config = load(tmp_path, f'[metrics]\nlisten = "{listen}"')

    assert config.metrics.host_port() == (host, 9482)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*absent\.toml"):
        load_config(tmp_path / "absent.toml")
