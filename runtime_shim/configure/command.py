# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl configure`: what a person types, and what it does."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from runtime_shim.configure.editor import RUNTIME_NAME, EditError, Traces, about
from runtime_shim.configure.engines import APPLY, APPLY_UNDO, EDITORS, ENGINES, Target
from runtime_shim.configure.launcher import find_launcher, launcher_places
from runtime_shim.configure.record import DEFAULT_RECORD, Change, Record, digest
from runtime_shim.configure.text_file import read_text, remove_file, write_text

record_option = click.option(
    "--record",
    "record_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=DEFAULT_RECORD,
    show_default=True,
    help="Where it is kept what was changed.",
)


@click.command()
@click.argument(
    "engine",
    type=click.Choice(sorted(ENGINES)),
    metavar="[" + "|".join(ENGINES) + "]",
    required=False,
)
@click.option("--default", "make_default", is_flag=True, help="Make it the engine's default, too.")
@click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
@click.option(
    "--undo", is_flag=True, help="Take back what was configured: of ENGINE, or of all of them."
)
@click.option(
    "--list",
    "as_list",
    is_flag=True,
    help="Print the configured engines: name, file and state, separated by tabs. "
    "The state is `runtime`, `default`, or `gone` when somebody has taken it out since.",
)
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The engine's configuration file, or our drop-in for crio and podman, where it is not "
    "in the usual place.",
)
@click.option(
    "--runtime",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Path of vgpu-container-runtime.  [default: beside vgpuctl]",
)
@record_option
def configure(
    engine: str | None,
    make_default: bool,
    dry_run: bool,
    undo: bool,
    as_list: bool,
    file: Path | None,
    runtime: Path | None,
    record_path: Path,
) -> None:
    """Make ENGINE know the runtime `vgpu`, or take that back.

    ENGINE is docker, containerd, crio or podman. The change is shown as a diff. Comments, order
    and everything else in the file stay; a file that cannot be edited safely is left alone. The
    engine's default runtime changes only with --default. No service is restarted: the last line
    says what to run. Doing it twice changes nothing.

    --undo puts back the very file that was there; if somebody has edited it since, only our part
    is taken out.

    \b
    vgpuctl configure docker --dry-run
    vgpuctl configure containerd
    vgpuctl configure --list
    vgpuctl configure --undo
    """  # noqa: D301 - click wants the character itself
    record = Record(record_path)
    if sum((undo, as_list, make_default)) > 1 or (as_list and (engine or dry_run)):
        raise click.UsageError("--list, --undo and --default are three different wishes")
    if as_list:
        _print_list(record)
    elif undo:
        _undo(record, engine, _absolute(file), dry_run)
    elif engine is None:
        raise click.UsageError("name an engine: " + ", ".join(ENGINES))
    else:
        try:
            _add(record, engine, _absolute(file), runtime, make_default, dry_run)
        except (EditError, OSError) as error:
            raise click.ClickException(f"{engine}: {_words(error)}") from error


def _add(
    record: Record,
    engine: str,
    file: Path | None,
    runtime: Path | None,
    make_default: bool,
    dry_run: bool,
) -> None:
    launcher = _launcher(runtime)
    with contextlib.nullcontext() if dry_run else record.locked():
        target = ENGINES[engine](file)
        with about(target.path):
            text = read_text(target.path)
            after = target.editor.configured(text or "", str(launcher), make_default)
        if after == text:
            click.echo(f"{engine}: {target.path} has the runtime {RUNTIME_NAME!r} already")
            return
        _print_diff(target.path, text, after)
        if dry_run:
            click.echo(f"{engine}: nothing was changed (--dry-run)")
            return
        change = _change(record.find(engine, target.path), target, text, after)
        _write(record, change, target, text, after, str(launcher), make_default)
        click.echo(f"{engine}: {target.path} is written; to apply it: {APPLY[engine]}")


def _change(known: Change | None, target: Target, text: str | None, after: str) -> Change:
    """Return what an undo must know, from the first of several changes on."""
    if known is None:
        return Change(
            engine=target.engine,
            path=str(target.path),
            text_before=text,
            created=text is None,
            folders=(),
            digest_after=digest(after),
            before=target.editor.traces(text) if text is not None else Traces(),
        )
    untouched = text is not None and digest(text) == known.digest_after
    return replace(
        known,
        digest_after=digest(after),
        # Somebody edited it in between: the old text lacks that, so it is not put back as it was.
        text_before=known.text_before if untouched else None,
        created=known.created and (untouched or text is None),
    )


def _write(
    record: Record,
    change: Change,
    target: Target,
    text: str | None,
    after: str,
    launcher: str,
    make_default: bool,
) -> None:
    known = record.find(*_key(change))
    record.keep(change)  # first: an undo of what was not done does nothing
    try:
        folders = write_text(target.path, after)
        try:
            with about(target.path):
                target.verify(launcher, make_default)
        except EditError:
            if text is None:
                remove_file(target.path, folders)
            else:
                write_text(target.path, text)
            raise
    except (OSError, EditError):
        record.keep(known) if known else record.forget(change)
        raise
    if folders:
        record.keep(replace(change, folders=tuple(map(str, folders))))


def _undo(record: Record, engine: str | None, file: Path | None, dry_run: bool) -> None:
    """Take back every change that is meant; go on after one that fails."""
    failed = False
    try:
        with contextlib.nullcontext() if dry_run else record.locked():
            changes = [
                each
                for each in record.changes()
                if engine in (None, each.engine) and file in (None, Path(each.path))
            ]
            if not changes:
                whose = engine or "any engine"
                click.echo(f"nothing to undo: vgpuctl has not configured {whose}")
            for change in reversed(changes):
                try:
                    _undo_one(record, change, dry_run)
                except (EditError, OSError) as error:
                    failed = True
                    click.echo(f"Error: {change.engine}: {_words(error)}", err=True)
    except (EditError, OSError) as error:
        raise click.ClickException(_words(error)) from error
    if failed:
        sys.exit(1)


def _undo_one(record: Record, change: Change, dry_run: bool) -> None:
    path, editor = Path(change.path), EDITORS[change.engine]
    with about(path):
        text = read_text(path)
    after: str | None
    if text is None or text == change.text_before:
        after = text
    elif digest(text) == change.digest_after and (change.created or change.text_before is not None):
        after = None if change.created else change.text_before
    else:
        with about(path):
            after = editor.undone(text, change.before)
        if change.created and editor.is_empty(after):
            after = None
    _print_diff(path, text, after)
    if dry_run:
        click.echo(f"{change.engine}: nothing was changed (--dry-run)")
        return
    if after is None:
        remove_file(path, [Path(folder) for folder in change.folders])
    elif after != text:
        write_text(path, after)
    record.forget(change)
    state = "is removed" if after is None else "is as it was"
    click.echo(f"{change.engine}: {path} {state}; to apply it: {APPLY_UNDO[change.engine]}")


def _print_list(record: Record) -> None:
    try:
        for change in record.changes():
            click.echo(f"{change.engine}\t{change.path}\t{state_of(change)}")
    except (EditError, OSError) as error:
        raise click.ClickException(_words(error)) from error


def state_of(change: Change) -> str:
    """Return `runtime`, `default` or `gone`: what is left of a change."""
    try:
        traces = EDITORS[change.engine].traces(read_text(Path(change.path)) or "")
    except EditError:
        return "gone"
    if traces.runtime is None:
        return "gone"
    return "default" if traces.default == RUNTIME_NAME else "runtime"


def _launcher(given: Path | None) -> Path:
    found = find_launcher(given)
    if found is None:
        looked = ", ".join(map(str, launcher_places(given)))
        raise EditError(
            f"there is no program at {looked}; an engine that names one which is missing "
            "starts nothing: install vgpu-runtime first, or give --runtime"
        )
    return found


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        hint = "; run it as root" if os.geteuid() != 0 else ""
        return f"cannot change {error.filename}: {error.strerror}{hint}"
    return str(error)


def _key(change: Change) -> tuple[str, Path]:
    return change.engine, Path(change.path)


def _absolute(path: Path | None) -> Path | None:
    return path.absolute() if path else None


def _print_diff(path: Path, before: str | None, after: str | None) -> None:
    lines = difflib.unified_diff(
        (before or "").splitlines(keepends=True),
        (after or "").splitlines(keepends=True),
        str(path) if before is not None else os.devnull,
        str(path) if after is not None else os.devnull,
    )
    for line in lines:
        click.echo(line.rstrip("\r\n"))
