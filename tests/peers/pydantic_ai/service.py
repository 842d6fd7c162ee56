"""200 conversations of one agent over a shared pool, events as JSON lines, an end in order at Ctrl-C, and on the next start
what was unfinished. The framework stores nothing: histories, inbox and marks of what was done are files of our own.
A folder is its argument."""

import asyncio
import json
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import time

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.models.openai import OpenAIChatModel

SESSIONS = 200


@dataclass
class Pool:
    rows: list = field(default_factory=list)


agent = Agent(OpenAIChatModel("simulated"), deps_type=Pool)


@agent.tool
async def add_row(context: RunContext[Pool], text: str) -> str:
    """Adds a row."""
    context.deps.rows.append(text)
    return f"row {len(context.deps.rows)}: {text}"


class Session:
    def __init__(self, folder, name, log):
        self.name, self.log = name, log
        self.history, self.pending = folder / f"{name}.history", folder / f"{name}.pending"

    def write(self, path, data):
        temporary = path.with_suffix(".new")
        temporary.write_bytes(data)
        temporary.rename(path)

    def tell(self, kind, **more):
        self.log.write(json.dumps({"session": self.name, "at": time(), "type": kind, **more}) + "\n")

    async def prompt(self, text, pool, gate):
        self.write(self.pending, text.encode())
        return await self.resume(pool, gate)

    async def resume(self, pool, gate):
        text = self.pending.read_text()
        history = ModelMessagesTypeAdapter.validate_json(self.history.read_bytes()) if self.history.exists() else None
        async with gate:
            self.tell("run_start")
            async with agent.iter(text, deps=pool, message_history=history) as run:
                async for node in run:
                    self.tell(type(node).__name__)
        self.write(self.history, run.result.all_messages_json())
        self.pending.unlink()
        self.tell("run_end", output=run.result.output)
        return run.result.output


async def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    pool, gate = Pool(), asyncio.Semaphore(32)
    with open(folder / "events.jsonl", "a") as log:
        unfinished = [Session(folder, path.stem, log) for path in folder.glob("*.pending")]
        resumed = await asyncio.gather(*(s.resume(pool, gate) for s in unfinished), return_exceptions=True)
        print(f"{len(resumed)} unfinished sessions were finished")
        sessions = [Session(folder, f"user-{number}", log) for number in range(SESSIONS)]
        work = asyncio.gather(
            *(s.prompt(f"Note {n}.", pool, gate) for n, s in enumerate(sessions)), return_exceptions=True
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, work.cancel)
        try:
            answers = await work
            print(sum(isinstance(answer, str) for answer in answers), "of", SESSIONS, "answered")
        except asyncio.CancelledError:
            print("ends; what is unfinished goes on at the next start")


asyncio.run(main(Path(sys.argv[1])))
