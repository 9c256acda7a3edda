"""The commands of `agentkit-fast`: options in, the command's own module called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(
    name="agentkit-fast",
    help="LLM agents on local models, fully offline.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model", "-m", help="A GGUF file to run in process. Default: the embedded SmolLM2-135M-Instruct."
    ),
]
EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--endpoint", "-e", help="An OpenAI-compatible endpoint instead, such as http://127.0.0.1:8080."
    ),
]
EndpointModelOption = Annotated[
    str, typer.Option("--endpoint-model", help="The model's name at the endpoint.")
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, help="Threads for llama.cpp. Default: measured at load.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
ToolsOption = Annotated[
    str,
    typer.Option("--tools", "-t", help="Tools, by commas: files:DIR, read:DIR (no writing), shell[:DIR]."),
]
McpOption = Annotated[
    Path | None, typer.Option("--mcp", help="A JSON file with `mcpServers`, each connected as tools.")
]
SessionOption = Annotated[
    Path | None,
    typer.Option("--session", "-s", help="A SQLite file that keeps the conversation; made when absent."),
]
SessionIdOption = Annotated[str, typer.Option("--session-id", help="Which conversation of the file.")]
BudgetOption = Annotated[
    int, typer.Option("--budget", min=0, help="Most tokens of a window. 0: from the model's own window.")
]
FormatOption = Annotated[str, typer.Option("--format", help="How calls travel: auto, native or heredoc.")]
SystemOption = Annotated[str, typer.Option("--system", help="The system prompt.")]
ContextOption = Annotated[
    int, typer.Option("--context", min=0, help="Window to open in process. 0: the model's.")
]
MaxTokensOption = Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens of one reply.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Run every tool call without asking.")]


@app.callback()
def _root(
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose", "-v", count=True, help="Show the library's log on standard error; -vv: all of it."
        ),
    ] = 0,
) -> None:
    """LLM agents on local models, fully offline."""
    if verbose:
        show_log(verbose)


def show_log(verbose: int) -> None:
    """Send the library's records to standard error: this is the application, so it may add a handler."""
    import logging

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))
    log = logging.getLogger("agentkit_fast")
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if verbose > 1 else logging.INFO)


@app.command()
def demo(
    model: ModelOption = None,
    endpoint: EndpointOption = None,
    endpoint_model: EndpointModelOption = "default",
    threads: ThreadsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Run an agent with file tools in a scratch folder, on a small model, in process and offline.

    Exit code 0: every task was done by its tool (the listing names the files, the text read is the file's, the
    file is written) and left a valid history. 1: one was not. 2: the model or the endpoint could not be used.
    130: stopped by Ctrl-C.

    Examples:

        agentkit-fast demo

        agentkit-fast demo --model ~/models/qwen3-4b.gguf

        agentkit-fast demo --endpoint http://127.0.0.1:8080
    """
    from agentkit_fast.cli.demo import run_demo

    raise typer.Exit(
        run_demo(
            model=model,
            endpoint=endpoint,
            endpoint_model=endpoint_model,
            threads=threads,
            json_output=json_output,
        )
    )


@app.command()
def run(
    task: Annotated[str, typer.Argument(help="What to do; `-` reads it from standard input.")],
    model: ModelOption = None,
    endpoint: EndpointOption = None,
    endpoint_model: EndpointModelOption = "default",
    tools: ToolsOption = "",
    mcp: McpOption = None,
    session: SessionOption = None,
    session_id: SessionIdOption = "cli",
    budget: BudgetOption = 0,
    format_: FormatOption = "auto",
    system: SystemOption = "You are a helpful assistant.",
    threads: ThreadsOption = None,
    context: ContextOption = 0,
    max_tokens: MaxTokensOption = 1024,
    yes: YesOption = False,
    json_output: JsonOption = False,
) -> None:
    """Do one task and leave. Every tool call asks first, unless --yes.

    Exit code 0: the model came to an end. 1: its reply was cut (--max-tokens, or the end of its window). 2: an option,
    the model or the endpoint could not be used. 130: stopped by Ctrl-C.

    Examples:

        agentkit-fast run "What is in these files?" --tools read:. --yes

        agentkit-fast run "Go on" --session work.db --endpoint http://127.0.0.1:8080
    """
    from agentkit_fast.cli.talk import TalkOptions, run_task

    options = TalkOptions(
        model=model,
        endpoint=endpoint,
        endpoint_model=endpoint_model,
        tools=tools,
        mcp=mcp,
        session_file=session,
        session_id=session_id,
        budget=budget,
        format=format_,
        system=system,
        threads=threads,
        context=context,
        max_tokens=max_tokens,
        yes=yes,
    )
    raise typer.Exit(run_task(task, options, json_output=json_output))


@app.command()
def chat(
    model: ModelOption = None,
    endpoint: EndpointOption = None,
    endpoint_model: EndpointModelOption = "default",
    tools: ToolsOption = "",
    mcp: McpOption = None,
    session: SessionOption = None,
    session_id: SessionIdOption = "cli",
    budget: BudgetOption = 0,
    format_: FormatOption = "auto",
    system: SystemOption = "You are a helpful assistant.",
    threads: ThreadsOption = None,
    context: ContextOption = 0,
    max_tokens: MaxTokensOption = 1024,
    yes: YesOption = False,
) -> None:
    """Talk with an agent. Ctrl-C stops the model, /quit leaves; with --session it goes on next time.

    Examples:

        agentkit-fast chat --model ~/models/qwen3-4b.gguf --tools files:notes --session notes.db
    """
    from agentkit_fast.cli.talk import TalkOptions, run_chat

    options = TalkOptions(
        model=model,
        endpoint=endpoint,
        endpoint_model=endpoint_model,
        tools=tools,
        mcp=mcp,
        session_file=session,
        session_id=session_id,
        budget=budget,
        format=format_,
        system=system,
        threads=threads,
        context=context,
        max_tokens=max_tokens,
        yes=yes,
    )
    raise typer.Exit(run_chat(options))


@app.command()
def bench(
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", "-m", help="A GGUF file for the tokenizer row. Default: the embedded model."
        ),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Measure the headline comparisons on this machine, in under half a minute.

    Peers (langchain-core, langgraph, llama-cpp-python) are measured where they are installed.

    Examples:

        agentkit-fast bench --json > bench.json
    """
    from agentkit_fast.cli.bench import run_bench

    raise typer.Exit(run_bench(model=model, json_output=json_output))


@app.command()
def tokens(
    files: Annotated[list[str], typer.Argument(help="Files to count; `-` is standard input.")],
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", help="A GGUF file or a tokenizer.json. Default: the embedded model."),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Count tokens exactly, with a model's own vocabulary (the weights are not loaded).

    Examples:

        agentkit-fast tokens README.md src/*.py --model ~/models/qwen3-4b.gguf
    """
    from agentkit_fast.cli.count import run_count

    raise typer.Exit(run_count(files, model=model, json_output=json_output))


@app.command()
def doctor(
    model: Annotated[
        Path | None, typer.Option("--model", "-m", help="A GGUF file to look at as well.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Say what is installed, which llama.cpp build, GPU and threads; and why something will not work.

    Exit code 1 when something is broken; a part that is merely not installed is none.
    """
    from agentkit_fast.cli.doctor import run_doctor

    raise typer.Exit(run_doctor(model=model, json_output=json_output))


@app.command()
def sessions(
    file: Annotated[Path, typer.Argument(help="A session file.")],
    json_output: JsonOption = False,
) -> None:
    """List the sessions of a file: entries, calls, last activity, first task."""
    from agentkit_fast.cli.sessions import run_sessions

    raise typer.Exit(run_sessions(file, json_output=json_output))


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A session file.")],
    session_id: Annotated[
        str, typer.Option("--session-id", help="Which session, where the file holds several.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page to write. Default: FILE.html here.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", help="Count with this GGUF's vocabulary. Default: the recorded one."),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", "-e", help="Count with this endpoint's tokenizer.")
    ] = None,
    endpoint_model: Annotated[
        str, typer.Option("--endpoint-model", help="The model asked for there. Default: the recorded one.")
    ] = "",
    budget: Annotated[
        int | None, typer.Option("--budget", min=0, help="Most tokens of a window. Default: as recorded.")
    ] = None,
    lod_above: Annotated[
        int | None,
        typer.Option(
            "--lod-above", min=0, help="Stub older entries above so many bytes. Default: as recorded."
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", help="The system prompt. Default: as recorded.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Show a session as the model saw it: one HTML page, a bar for each request, every text behind a click.

    The windows are played again from its history, with the budget, system prompt and vocabulary that the file says it
    ran with. Options say otherwise, or fill in what an older file does not hold.

    Examples:

        agentkit-fast inspect notes.db

        agentkit-fast inspect notes.db --session-id cli --budget 8000 --out notes.html
    """
    from agentkit_fast.cli.looking import run_inspect

    raise typer.Exit(
        run_inspect(
            file,
            session_id=session_id,
            out=out,
            model=model,
            endpoint=endpoint,
            endpoint_model=endpoint_model,
            budget=budget,
            lod_above=lod_above,
            system=system,
            json_output=json_output,
        )
    )


@app.command()
def shape(
    file: Annotated[
        str, typer.Argument(help="Messages: a JSON list, or JSON lines; `-` is standard input.")
    ],
    budget: Annotated[int, typer.Option("--budget", min=1, help="Most tokens of the result.")],
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", help="Count with this GGUF's vocabulary. Default: bytes by four."),
    ] = None,
    lod_above: Annotated[
        int, typer.Option("--lod-above", min=0, help="Stub older entries above so many bytes.")
    ] = 800,
    keep: Annotated[
        int, typer.Option("--keep", min=0, help="Newest messages and tool rounds kept verbatim.")
    ] = 10,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print JSON lines instead of a list.")] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the messages and what became of each as one JSON object.")
    ] = False,
) -> None:
    """Shape a list of OpenAI-format messages to a budget; what was cut, and why, is told on standard error.

    Examples:

        agentkit-fast shape talk.json --budget 8000 > shaped.json

        agentkit-fast shape talk.json --budget 8000 --json | jq '.changes[] | select(.what != "kept")'
    """
    from agentkit_fast.cli.shape import run_shape

    raise typer.Exit(
        run_shape(
            file,
            budget=budget,
            model=model,
            lod_above=lod_above,
            keep=keep,
            json_lines=jsonl,
            json_output=json_output,
        )
    )


@app.command()
def probe(
    model: ModelOption = None,
    endpoint: EndpointOption = None,
    endpoint_model: EndpointModelOption = "default",
    threads: ThreadsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Probe how tool calls and grammars fare on a model or an endpoint, as a table.

    Examples:

        agentkit-fast probe --endpoint http://127.0.0.1:8080 --endpoint-model qwen3-4b
    """
    from agentkit_fast.cli.probing import run_probe

    raise typer.Exit(
        run_probe(
            model=model,
            endpoint=endpoint,
            endpoint_model=endpoint_model,
            threads=threads,
            json_output=json_output,
        )
    )
