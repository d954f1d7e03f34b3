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

from pfedhgp import __version__
from pfedhgp.cli import reproduce
from pfedhgp.cli.audit import audit
from pfedhgp.cli.certs import certs
from pfedhgp.cli.classify import classify
from pfedhgp.cli.client import client
from pfedhgp.cli.cluster import cluster
from pfedhgp.cli.demo import demo
from pfedhgp.cli.federate import federate
from pfedhgp.cli.fit import fit
from pfedhgp.cli.predict import predict
from pfedhgp.cli.report import report
from pfedhgp.cli.server import server
from pfedhgp.cli.signals import INTERRUPTED, TERMINATED, Terminated, leave, terminable
from pfedhgp.errors import InputError

OK, FAILURE, USAGE = 0, 1, 2
TWICE = re.compile(r"(Did you mean [^?]*\?)(?:\s*\1)+")
"""click and typer both guess what was meant."""
MACHINE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS),
    *(errno.EACCES, errno.EPERM, errno.EIO),
)
"""What the disk refuses: said in one line, because no traceback mends it."""

app = typer.Typer(
    name="pfedhgp",
    add_completion=False,
    pretty_exceptions_show_locals=False,  # a client's rows must not land in a traceback
    context_settings={"help_option_names": ["-h", "--help"]},
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


COMMANDS = (
    *(demo, fit, predict, classify, cluster, report),
    *(server, client, federate, certs, audit),
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(reproduce.app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line on `arguments` (default: the program's own); returns the exit code."""
    try:
        # Not `app()`: that installs an exception hook and ends the process by itself.
        with terminable():
            code = typer.main.get_command(app).main(
                args=arguments, prog_name="pfedhgp", standalone_mode=False
            )
    except click.ClickException as error:
        text = TWICE.sub(r"\1", error.format_message())
        return _complain(f"{text.rstrip('.')} (see `pfedhgp --help`)")
    except InputError as error:
        return _complain(str(error))
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    except BrokenPipeError:
        # Who read our output has gone; Python would complain once more when it flushes at its end.
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


def _complain(message: str) -> int:
    """Prints the user's mistake as a single line."""
    print("pfedhgp: error:", " ".join(message.split()), file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    sys.exit(leave(main()))
