# SPDX-License-Identifier: Apache-2.0
"""Writes the manual pages: manpages.py FOLDER. The commands' own help is their only source."""

import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

import runtime_shim.agent
import runtime_shim.cli
import scheduler_cache.cli

# The launcher is no click command: it has no option of its own.
_RUNTIME_NAME = "OCI runtime that gives a container its slice of a GPU"
_RUNTIME = r""".SH SYNOPSIS
.B vgpu\-container\-runtime
.RI [ "option of runc or crun" ]...\& command ...
.SH DESCRIPTION
Container engines execute it where they would execute runc or crun, with the same words, and it
passes every one of them on. When
.BR create ", " run " or " restore
is asked for a container that gets a GPU, it first asks
.BR vgpu\\-node\\-agent (8),
which edits the bundle or refuses; on a refusal the container does not start.
.SH FILES
.TP
.I /etc/vgpu/runtime.conf
which low\-level runtime, where the agent listens, how long to wait
.TP
.I /run/vgpu/agent.sock
where the agent listens
.SH EXIT STATUS
That of the low\-level runtime; 1 on a refusal.
"""
_SEE_ALSO = ("vgpu-container-runtime", "vgpu-node-agent", "vgpu-scheduler-cache", "vgpuctl")


def escaped(text: str) -> str:
    """Return text as roff shows it."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def paragraphs(help_text: str) -> Iterator[str]:
    r"""Yield a click help text as roff: \b begins a paragraph that keeps its lines."""
    for paragraph in re.split(r"\n\s*\n", help_text.strip()):
        yield ".PP"
        if paragraph.lstrip().startswith("\b"):
            kept = "\n".join(
                line.strip() for line in paragraph.replace("\b", "").strip().split("\n")
            )
            yield f".nf\n{escaped(kept)}\n.fi"
        else:
            yield escaped(" ".join(paragraph.split()))


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the options of one command."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield f".TP\n.B {escaped(record[0])}\n{escaped(' '.join(record[1].split()))}"


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield (words, command) of everything below `group` that is not hidden."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=name, parent=context)
            yield from ((f"{name} {words}", each) for words, each in commands(command, inner))
        else:
            yield name, command


def page(program: str, group: click.Group) -> str:
    """Return the body of one program's page."""
    context = click.Context(group, info_name=program)
    lines = [".SH SYNOPSIS", f".B {escaped(program)}", "[option]... command [option]..."]
    lines += [".SH DESCRIPTION", *paragraphs(group.help or "")]
    lines += [".SH OPTIONS", *options(group, context), ".SH COMMANDS"]
    for words, command in commands(group, context):
        inner = click.Context(command, info_name=words, parent=context)
        usage = " ".join(command.collect_usage_pieces(inner))
        lines.append(f".SS {escaped(f'{words} {usage}')}")
        lines += [*paragraphs(command.help or ""), *options(command, inner)]
    return "\n".join(lines) + "\n"


def write(folder: Path, program: str, what: str, body: str) -> None:
    """Write one page with its head and foot."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    date = datetime.fromtimestamp(epoch, UTC).date()
    others = ",\n".join(f".BR {escaped(name)} (8)" for name in _SEE_ALSO if name != program)
    head = f'.TH "{program.upper()}" 8 {date} "vgpu {runtime_shim.__version__}"\n'
    name = f".SH NAME\n{escaped(program)} \\- {escaped(what)}\n"
    see = ".SH SEE ALSO\n" + others.replace("(8),", "(8),") + "\n"
    (folder / f"{program}.8").write_text(head + name + body + see)


def main() -> None:
    """Write all pages."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, "vgpu-container-runtime", _RUNTIME_NAME, _RUNTIME)
    for program, group in (
        ("vgpu-node-agent", runtime_shim.agent.main),
        ("vgpu-scheduler-cache", scheduler_cache.cli.main),
        ("vgpuctl", runtime_shim.cli.main),
    ):
        what = (group.help or "").strip().splitlines()[0].rstrip(".")
        write(folder, program, what[0].lower() + what[1:], page(program, group))


if __name__ == "__main__":
    main()
