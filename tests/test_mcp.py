"""`dmodel mcp`, asked by a client of the protocol: what it lists, answers and refuses."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
from collections.abc import Awaitable, Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from typer.testing import CliRunner

from dmodel.cli import app
from dmodel.cli.mcp import result
from dmodel.cli.tools import TOOLS, command_line, parameters, schema
from dmodel.errors import InputError

ROOT = Path(__file__).parents[1]

JOB = {"system": "A100-DGX", "devices": 16, "model": "llama-3-8b", "global_batch": 64}
ONE = "--system A100-DGX --devices 16 --model llama-3-8b --global-batch 64"
TRACES = """model,n_accel,accelerator,seq_len,global_batch,micro_batch,dp,tp,pp,zero_stage
llama-2-7b,16,A100-80GB,4096,64,1,8,2,1,1
"""

ASKED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a plan": (
        "predict",
        {**JOB, "profile": "prior", "tp": 2, "sp": False, "set": ["price=2 dollar/hour"]},
        f"{ONE} --profile prior --tp 2 --no-sp --set 'price=2 dollar/hour'",
    ),
    "no sane run": (
        "predict",
        {**JOB, "profile": "prior", "global_batch": 4000000},
        f"{ONE} --profile prior --global-batch 4000000",
    ),
    "a table": ("predict", {"traces": "{folder}/rows.csv"}, "{folder}/rows.csv"),
    "a design": (
        "design",
        {**JOB, "profile": "prior", "devices": "16", "brief": True, "top": 2},
        f"{ONE} --profile prior --brief --top 2",
    ),
    "a diagnosis": (
        "diagnose",
        {**JOB, "measured": ["30s", "memory=61GB"]},
        f"{ONE} --measured 30s --measured memory=61GB",
    ),
    "an input": (
        "solve",
        {**JOB, "for": "chip.flops_per_s", "such_that": "step_time=40s", "between": [1e13, 1e16]},
        f"{ONE} --for chip.flops_per_s --such-that step_time=40s --between 1e13 1e16",
    ),
    "elasticities": ("sensitivity", {**JOB, "profile": "prior"}, f"{ONE} --profile prior"),
    "all names": ("catalog", {}, ""),
    "a chip": ("catalog", {"kind": "chips", "name": "B200"}, "chips B200"),
}
"""Calls, and the commands that they stand for."""

WRONG = {
    "a word": ("predict", {**JOB, "modle": "x"}, "'modle' (did you mean 'model'?)"),
    "a type": ("predict", {**JOB, "devices": "many"}, "devices: expected a value of type integer"),
    "a name": ("predict", {**JOB, "model": "llama-3-8x"}, "nearest: llama-3-8b"),
    "too little": ("solve", JOB, "missing for, such_that"),
    "a file": ("predict", {"traces": "{folder}/none.csv"}, "none.csv"),
    "to write": ("predict", {"traces": "{folder}/rows.csv", "out": "x.csv"}, "argument 'out'"),
    "a tool": ("fit", {}, "unknown tool 'fit'"),
}
"""Calls that are mistakes, and what their answers say."""


def talk(folder: Path, options: str, ask: Callable[[ClientSession], Awaitable[Any]]) -> Any:
    """What a client gets from a server that works in a folder."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "dmodel", "mcp", *shlex.split(options)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
    )

    async def session() -> Any:
        async with stdio_client(server) as streams, ClientSession(*streams) as client:
            await client.initialize()
            return await ask(client)

    return anyio.run(session)


def within(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments with the folder in their paths."""
    return {
        name: value.format(folder=folder) if isinstance(value, str) else value
        for name, value in given.items()
    }


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict[str, Any]:
    """All calls of one server, and the names of the files that were there in the end."""
    folder = tmp_path_factory.mktemp("mcp")
    (folder / "rows.csv").write_text(TRACES)

    async def ask(client: ClientSession) -> dict[str, Any]:
        found: dict[str, Any] = {"tools": (await client.list_tools()).tools, "folder": folder}
        for name, (tool, given, _) in {**ASKED, **WRONG}.items():
            found[name] = await client.call_tool(tool, within(folder, given))
        return found

    found = talk(folder, "--profile generic", ask)
    return found | {"files": sorted(each.name for each in folder.iterdir())}


@pytest.mark.parametrize("name", ASKED)
def test_a_tool_answers_as_its_command_does(answers, name):
    tool, given, words = ASKED[name]
    words = words.format(folder=answers["folder"])
    if "profile" not in given and tool != "catalog":
        words = f"--profile generic {words}"
    done = CliRunner().invoke(app, [tool, *shlex.split(words), "--json"])
    answer = answers[name]
    assert not answer.is_error and done.exit_code in (0, 1)
    assert answer.structured_content == json.loads(done.stdout)
    assert json.loads(answer.content[0].text) == json.loads(done.stdout)
    noticed = "".join(text.text for text in answer.content[1:])
    assert noticed.startswith("NO: ") == (done.exit_code == 1)
    assert [line.removeprefix("dmodel: ") for line in done.stderr.splitlines()] == (
        noticed.removeprefix("NO: ").splitlines()
    )


def test_one_of_the_answers_is_no(answers):
    assert answers["no sane run"].content[1].text.startswith("NO: ")


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_told_and_the_server_goes_on(answers, name):
    answer = answers[name]
    assert answer.is_error and answer.structured_content is None
    assert WRONG[name][2] in answer.content[0].text
    assert "Traceback" not in answer.content[0].text


def test_no_file_is_written(answers):
    assert answers["files"] == ["rows.csv"]


def test_what_is_listed_is_described(answers):
    assert [tool.name for tool in answers["tools"]] == list(TOOLS)
    for tool in answers["tools"]:
        assert tool.input_schema == json.loads(json.dumps(schema(tool.name)))
        assert tool.input_schema["additionalProperties"] is False
        assert all(each["description"] for each in tool.input_schema["properties"].values())
    solve = answers["tools"][list(TOOLS).index("solve")].input_schema
    assert solve["required"] == ["for", "such_that"]
    assert solve["properties"]["devices"]["type"] == "integer"
    assert solve["properties"]["between"]["maxItems"] == 2


def test_a_call_over_the_limit_is_ended_and_the_server_goes_on(tmp_path):
    never = tmp_path / "never.csv"
    os.mkfifo(never)

    async def ask(client: ClientSession) -> tuple[Any, bool, Any]:
        late = await client.call_tool("predict", {"traces": str(never)})
        return late, is_running(str(never)), await client.call_tool("catalog", {})

    late, running, after = talk(tmp_path, "--seconds 4", ask)
    assert late.is_error and "not done after 4 s" in late.content[0].text
    assert not running
    assert "B200" in after.structured_content["chips"]


def is_running(word: str) -> bool:
    """Whether a command line of some process has a word."""
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # processes end meanwhile
            if word.encode() in one.read_bytes().split(b"\0"):
                return True
    return False


def test_tools_have_nothing_that_writes():
    paths = {
        (tool, name)
        for tool in TOOLS
        for name, each in parameters(tool).items()
        if each.kind is Path
    }
    assert paths == {("predict", "traces"), ("diagnose", "file")}
    for tool in TOOLS:
        assert "json" not in parameters(tool)


@pytest.mark.parametrize("value", ["--json", "-x", "--out=gone.csv", "a b"])
def test_a_value_is_never_an_option(value):
    words = command_line("predict", {"traces": value, "model": value, "set": [value, value]})
    assert words == ["predict", f"--model={value}", *[f"--set={value}"] * 2, "--json", "--", value]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"devices": 1.5}, "devices: expected a value of type integer, got 1.5"),
        ({"devices": True}, "devices: expected a value of type integer, got True"),
        ({"chinchilla": "yes"}, "chinchilla: expected true or false"),
        ({"model": ["x"]}, "model: expected a value of type string"),
    ],
)
def test_values_of_other_types_are_refused(given, says):
    with pytest.raises(InputError) as error:
        command_line("predict", given)
    assert says in str(error.value)


def test_numbers_are_taken_where_a_text_may_be_one():
    assert "--devices=64" in command_line("design", {"devices": 64, "model": None})
    assert "--devices=64" in command_line("predict", {"devices": 64.0})
    with pytest.raises(InputError, match="between: expected 2 values, got 1"):
        command_line("solve", {"for": "tp", "such_that": "mfu=40%", "between": [1.0]})


def test_a_command_that_fails_is_an_error():
    ended = result(-9, "", "dmodel: working\n")
    assert ended.is_error and ended.content[0].text == "ended with code -9: working"  # type: ignore


def test_the_limit_and_the_profile_are_checked_before_serving():
    for words, says in {"--seconds 0": "0", "--profile nonesuch": "nonesuch"}.items():
        done = CliRunner().invoke(app, ["mcp", *words.split()])
        assert done.exit_code == 2 and done.stdout == "" and says in done.stderr


@pytest.mark.parametrize("found", [None, "1.30.0"])
def test_a_missing_package_is_one_line_that_says_what_to_install(monkeypatch, found):
    def version(name: str) -> str:
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(metadata, "version", version)
    done = CliRunner().invoke(app, ["mcp"])
    assert done.exit_code == 2 and done.stdout == ""
    [line] = done.stderr.splitlines()
    assert "pip install 'dmodel-jax[mcp]'" in line and f"got {found or 'none'}" in line


def test_the_skill_names_tools_and_arguments_that_there_are():
    text = (ROOT / "docs" / "skill" / "SKILL.md").read_text()
    assert re.match(r"---\nname: dmodel\ndescription: .+\n---\n", text)
    named = re.findall(r"^\|[^|]+\| `(\w+)` \|(.+)\|$", text, flags=re.MULTILINE)
    assert {tool for tool, _ in named} == set(TOOLS)
    for tool, words in named:
        said = re.findall(r"`(\w+)(?=[:`])", words)
        assert set(said) <= set(parameters(tool)), tool
