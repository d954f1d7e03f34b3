"""Entry point of the `pfedhgp` command: its options, and how errors become exit codes.

0 fine; 2 the user's input is wrong (one line, no traceback); 130 Ctrl-C; 143 SIGTERM; 1 our fault or
the machine's. Nothing heavy is imported here: `pfedhgp --help` must not wait for JAX.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated

import click
import typer

from pfedhgp.base.signals import INTERRUPTED, TERMINATED, Terminated, leave, terminable
from pfedhgp.cli.commands import SETTINGS, Commands
from pfedhgp.errors import InputError
from pfedhgp.version import __version__

OK, FAILURE, USAGE = 0, 1, 2
TWICE = re.compile(r"(Did you mean [^?]*\?)(?:\s*\1)+")
"""click and typer may both suggest an option or an experiment."""
MACHINE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS),
    *(errno.EACCES, errno.EPERM, errno.EIO),
)
"""Errors of the disk: reported in one line, because a traceback does not help."""

app = typer.Typer(
    name="pfedhgp",
    cls=Commands,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,  # a traceback must not contain a client's rows
    context_settings=SETTINGS,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pfedhgp {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Personalized federated hierarchical Gaussian processes."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line on `arguments` (default: the program's own); returns the exit code."""
    try:
        # Not `app()`: that installs an exception hook and ends the process by itself.
        with terminable():
            code = typer.main.get_command(app).main(
                args=arguments, prog_name="pfedhgp", standalone_mode=False
            )
    except click.ClickException as error:
        # A group without a command; click has this class from 8.2 on.
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return USAGE
        return _complain(_usage(error, sys.argv[1:] if arguments is None else arguments))
    except InputError as error:
        return _complain(str(error))
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except Exception as error:
        if isinstance(error, OSError) and error.errno in MACHINE:
            where = f"{error.filename}: " if error.filename else ""
            print(f"pfedhgp: error: {where}{error.strerror}", file=sys.stderr)
            return FAILURE
        import traceback

        traceback.print_exc()
        return FAILURE
    return code if isinstance(code, int) else OK


def _usage(error: click.ClickException, arguments: Sequence[str]) -> str:
    """What is wrong with the options, what was probably meant, and where the help is."""
    text = TWICE.sub(r"\1", error.format_message()).rstrip(".")
    one_dash = next((each for each in arguments if re.fullmatch(r"-[a-z]{2}[a-z-]*", each)), None)
    if isinstance(error, click.NoSuchOption) and one_dash is not None:
        text = f"No such option '{one_dash}': did you mean '-{one_dash}'?"
    context = getattr(error, "ctx", None)
    return f"{text} (see `{context.command_path if context else 'pfedhgp'} --help`)"


def _complain(message: str) -> int:
    """Prints the user's mistake as a single line."""
    print("pfedhgp: error:", " ".join(message.split()), file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    sys.exit(leave(main()))
