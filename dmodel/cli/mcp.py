"""`dmodel mcp`: commands as tools of an agent, by the Model Context Protocol on stdio."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dmodel.cli.options import ProfileOption
from dmodel.errors import InputError

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolResult
    from mcp.types import Tool as Listed

Seconds = Annotated[
    float,
    typer.Option(
        min=0.1,
        max=86400.0,
        metavar="SECONDS",
        help="Time limit of a call; a longer one returns an error.",
    ),
]

ABOUT = (
    "A differentiable model of distributed transformer training: it predicts, designs and explains "
    "the time, memory, energy and cost of training plans. Arguments are the commands' options "
    "with _ for -: messages name --global-batch where a call has global_batch. Answers are "
    "JSON; numbers are SI (s, byte, FLOP, W, J) unless a name says otherwise. A second text, where "
    "there is one, holds warnings, and begins with NO where the answer is no. "
    "Only files named in a call are read, none are written. A call takes at most {seconds:g} s."
)

DONE, NO, BAD_INPUT = 0, 1, 2
"""Exit codes of commands."""

PREFIX = "dmodel: "
"""How commands begin what they say."""


class Serving(NamedTuple):
    """How calls are answered. profile: of calls that name none; seconds: the longest of one."""

    profile: str | None
    seconds: float


def command(profile: ProfileOption = None, seconds: Seconds = 60.0) -> None:
    """Serve predict, design, diagnose, solve, sensitivity and catalog as tools for agents, by the
    Model Context Protocol on stdin and stdout."""
    if profile is not None:
        from dmodel.profiles.shipped import check

        check(profile)
    check_version()
    import anyio

    anyio.run(_serve, _server(Serving(profile, seconds)))


def check_version() -> None:
    """Refuse to serve without the package mcp.

    Raises:
      InputError: it is missing or too old.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("mcp")
    except PackageNotFoundError:
        found = "none"
    if found.partition(".")[0] in ("none", "0", "1"):
        raise InputError(
            f"mcp: needs the package mcp, expected 2.0 or newer, got {found}: "
            "pip install 'dmodel-jax[mcp]'"
        )


def _server(serving: Serving) -> Server:
    """A server that lists tools and answers calls of them."""
    import anyio
    from mcp.server.lowlevel import Server
    from mcp.types import ListToolsResult

    from dmodel import __version__

    turn = anyio.Lock()

    async def list_tools(_: Any, __: Any) -> ListToolsResult:
        return ListToolsResult(tools=listed())

    async def call_tool(_: Any, asked: Any) -> CallToolResult:
        try:
            words = words_of(asked.name, asked.arguments or {}, serving)
        except InputError as error:
            return refused(str(error))
        async with turn:
            return await answered(words, serving.seconds)

    return Server(
        "dmodel",
        version=__version__,
        instructions=ABOUT.format(seconds=serving.seconds),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _serve(server: Server) -> None:
    """Answer until the client closes stdin."""
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def listed() -> list[Listed]:
    """The tools with what they take."""
    from mcp.types import Tool, ToolAnnotations

    from dmodel.cli.tools import TOOLS, schema

    harmless = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    return [
        Tool(name=name, description=tool.when, input_schema=schema(name), annotations=harmless)
        for name, tool in TOOLS.items()
    ]


def words_of(name: str, given: dict[str, Any], serving: Serving) -> list[str]:
    """The command line of a call, with the server's profile where the call names none.

    Raises:
      InputError: as `tools.command_line`.
    """
    from dmodel.cli.tools import TOOLS, command_line, parameters

    if serving.profile is not None and name in TOOLS and "profile" in parameters(name):
        given = {"profile": serving.profile} | given
    return command_line(name, given)


async def answered(words: list[str], seconds: float) -> CallToolResult:
    """What a command answers in a process of its own, which ends with the call."""
    import subprocess

    import anyio

    # -P: the client's folder is no place to import from
    line = [sys.executable, "-P", "-m", "dmodel", *words]
    try:
        with anyio.fail_after(seconds):
            done = await anyio.run_process(line, stdin=subprocess.DEVNULL, check=False)
    except TimeoutError:
        return refused(
            f"{words[0]}: not done after {seconds:g} s, the longest time of a call. Ask for less "
            "(design: brief, fewer values; sensitivity: no global indices), or start the server "
            "with more: dmodel mcp --seconds N"
        )
    return result(done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace"))


def result(code: int, answer: str, said: str) -> CallToolResult:
    """The answer of a command as that of a tool."""
    from mcp.types import CallToolResult, TextContent

    said = re.sub(f"^{PREFIX}", "", said.strip(), flags=re.MULTILINE)
    if code == BAD_INPUT:
        return refused(said)
    if code not in (DONE, NO):
        return refused(f"ended with code {code}: {said[-2000:]}")
    noticed = f"NO: {said}" if code == NO else said
    texts = filter(None, (answer, noticed))
    return CallToolResult(
        content=[TextContent(type="text", text=text) for text in texts],
        structured_content=json.loads(answer),
    )


def refused(why: str) -> CallToolResult:
    """A user's mistake: what happened, what was expected and got, what to do."""
    from mcp.types import CallToolResult, TextContent

    return CallToolResult(content=[TextContent(type="text", text=why)], is_error=True)
