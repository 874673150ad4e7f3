# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from scheduler_cache.config import Config
from scheduler_cache.config_kubernetes import DIALECTS, AdmissionConfig, KubernetesConfig
from scheduler_cache.dialects.hami import Hami
from scheduler_cache.dialects.kai import Kai
from scheduler_cache.dialects.keyring import Key, Keyring
from scheduler_cache.dialects.registry import every_dialect
from scheduler_cache.dialects.volcano import Volcano
from scheduler_cache.errors import ConfigError


def loaded(tmp_path: Path, text: str, flags: dict[str, object] | None = None) -> Config:
    path = tmp_path / "scheduler-cache.toml"
    path.write_text(text)
    return Config.load(path, flags)


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert loaded(tmp_path, "") == Config()


def test_the_file_wins_over_defaults_and_flags_win_over_the_file(tmp_path: Path) -> None:
    text = 'embedded = true\nstate_dir = "/a"\ncard_policy = "spread"\nstopped_grace_seconds = 3'

    config = loaded(tmp_path, text, {"state_dir": Path("/b")})

    assert config == Config(
        embedded=True, state_dir=Path("/b"), card_policy="spread", stopped_grace_seconds=3.0
    )


def test_what_is_printed_can_be_read_again(tmp_path: Path) -> None:
    config = Config(embedded=True, listen=("unix:/a", "127.0.0.1:1"), drain_seconds=0.5)

    assert loaded(tmp_path, str(config)) == config
    assert list(tomllib.loads(str(config))) == list(vars(config))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lisen = []", "unknown key 'lisen'; known are embedded, state_dir"),
        ("listen = []", "listen is empty"),
        ("listen = 'unix:/x'", "listen must be a list of strings, not 'unix:/x'"),
        ("listen = [1]", "listen must be a list of strings"),
        ("embedded = 1", "embedded must be true or false"),
        ("state_dir = 7", "state_dir must be a path"),
        ("watch_queue_length = 1.5", "watch_queue_length must be a whole number"),
        ("watch_queue_length = true", "watch_queue_length must be a whole number"),
        ("watch_queue_length = 0", "watch_queue_length must be 1 or more"),
        ("drain_seconds = 'x'", "drain_seconds must be a number"),
        ("drain_seconds = -1", "must not be negative"),
        ("card_policy = 'best'", "card_policy must be one of binpack, spread, exclusive"),
        ("log_format = 'xml'", "log_format must be one of text, json"),
        ("embedded = ", "Invalid value"),
    ],
)
def test_a_mistake_is_named_with_the_file(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"scheduler-cache\.toml: .*{words}"):
        loaded(tmp_path, text)


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: No such file"):
        Config.load(tmp_path / "nowhere")


def test_the_table_of_kubernetes_is_checked_as_the_rest(tmp_path: Path) -> None:
    text = '[kubernetes]\nlisten = ["[::]:1"]\nlease_seconds = 20\n'

    config = loaded(tmp_path, text, {"kubernetes_kubeconfig": "/k"})

    assert config.kubernetes == KubernetesConfig(
        listen=("[::]:1",), lease_seconds=20.0, kubeconfig="/k"
    )
    assert loaded(tmp_path, str(config)) == config


def test_tables_stand_within_tables(tmp_path: Path) -> None:
    text = '[kubernetes]\nlisten = ["[::]:1"]\n[kubernetes.admission]\nlisten = ["[::]:9443"]\n'

    config = loaded(tmp_path, text)

    assert config.kubernetes == KubernetesConfig(
        listen=("[::]:1",), admission=AdmissionConfig(listen=("[::]:9443",))
    )
    assert loaded(tmp_path, str(config)) == config


def test_the_replicas_are_known_by_their_service_account_or_as_the_configuration_says() -> None:
    assert KubernetesConfig(namespace="gpu").user == (
        "system:serviceaccount:gpu:vgpu-scheduler-cache"
    )
    assert KubernetesConfig(admission=AdmissionConfig(user="us")).user == "us"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kubernetes = 1", "kubernetes must be a table, not 1"),
        ("[kubernetes]\nadmission = 1", "kubernetes.admission must be a table, not 1"),
        ("[kubernetes.admission]\nlisen = 1", "unknown key 'kubernetes.admission.lisen'"),
        ("[kubernetes.admission]\nlisten = 1", "kubernetes.admission.listen must be a list"),
        ('[kubernetes.admission]\nkey = "/k"', "give certificate and key, or neither"),
        ('[kubernetes.admission]\nprivileged = "maybe"', "must be one of deny, allow"),
        ('[kubernetes.admission]\ndialects = ["cuda"]', "not cuda"),
        ('[kubernetes.admission]\nruntime_class = ""', "runtime_class is empty"),
        ("[kubernetes.admission]\ncertificate_days = 0", "must be positive"),
        ("[kubernetes]\nliste = 1", "unknown key 'kubernetes.liste'"),
        ("[kubernetes]\nlisten = 1", "kubernetes.listen must be a list of strings"),
        ("[kubernetes]\nrenew_seconds = 60", "keeps two replicas from leading at once"),
        ('[kubernetes]\nin_cluster = true\nkubeconfig = "/k"', "not both"),
        ('[kubernetes]\ntoken_accounts = ["x"]', "must be NAMESPACE/NAME"),
        ("[kubernetes]\neviction_seconds = 0", "must be positive"),
        ("[kubernetes.dialects]\nundecided_seconds = -1", "undecided_seconds must not be negative"),
    ],
)
def test_a_mistake_in_the_table_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        loaded(tmp_path, text)


def test_the_names_of_dialects_are_those_that_there_are() -> None:
    dialects = every_dialect(Keyring(Key("k", b"secret")))

    assert tuple(each.name for each in dialects) == DIALECTS


def test_dialects_have_the_values_of_the_installations_that_are_joined(tmp_path: Path) -> None:
    text = (
        "[kubernetes.dialects.hami]\nmemory_factor = 10\ndefault_memory = 3\n"
        "claim_bare_gpu = true\nfull_card_cores = false\njson_register = false\n"
        "[kubernetes.dialects.volcano]\nmemory_factor = 256\n"
        '[kubernetes.dialects.kai]\nreservation_namespace = "reserved"\n'
    )

    dialects = loaded(tmp_path, text).kubernetes.dialects.every(Keyring(Key("k", b"x")))

    assert dialects.get("hami") == Hami(
        memory_factor=10,
        default_memory=3,
        claim_bare_gpu=True,
        full_card_cores=False,
        json_register=False,
    )
    assert dialects.get("volcano") == Volcano(memory_factor=256)
    assert dialects.get("kai") == Kai(reservation_namespace="reserved")


def test_dialects_without_values_are_as_their_systems_come(tmp_path: Path) -> None:
    keyring = Keyring(Key("k", b"x"))

    built = loaded(tmp_path, "").kubernetes.dialects.every(keyring)

    plain = every_dialect(keyring)
    assert [each.name for each in built] == [each.name for each in plain]
    for name in ("hami", "volcano", "kai"):
        assert built.get(name) == plain.get(name)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("hami]\nmemory_factor = 0", "hami: memory_factor must be 1 or more"),
        ("hami]\ndefault_memory = -1", "hami: default_memory must not be negative"),
        ("hami]\nclaim_bare_gpu = 1", "claim_bare_gpu must be true or false"),
        ("volcano]\nmemory_factor = 0", "volcano: memory_factor must be 1 or more"),
        ('kai]\nreservation_namespace = ""', "reservation_namespace is empty"),
    ],
)
def test_a_mistake_in_a_dialects_table_is_named(tmp_path: Path, table: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        loaded(tmp_path, f"[kubernetes.dialects.{table}")


def test_replicas_agree_on_the_names_of_keys(tmp_path: Path) -> None:
    config = KubernetesConfig(keys_dir=str(tmp_path))
    (tmp_path / "current").write_bytes(b"x" * 32)
    first = config.keyring()
    (tmp_path / "current").rename(tmp_path / "previous")
    (tmp_path / "current").write_bytes(b"y" * 32)
    second = config.keyring()

    assert second.previous == first.current
    assert second.current.name != first.current.name
    assert second.proves(first.current.name, b"payload", first.sign(b"payload"))


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "current").write_bytes(b"short")

    with pytest.raises(ConfigError, match="at least 32 bytes"):
        KubernetesConfig(keys_dir=str(tmp_path)).keyring()
