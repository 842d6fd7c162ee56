"""An agent with one tool, asked one question. OPENAI_BASE_URL and OPENAI_API_KEY say where."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

agent = Agent(OpenAIChatModel("simulated"), instructions="Be brief.")


@agent.tool_plain
async def weather(city: str) -> str:
    """Current weather for one city.

    Args:
        city: City name, e.g. "Oslo"
    """
    return f"{city}: 12 °C, rain"


async def main():
    result = await agent.run("Umbrella in Oslo?")
    print(result.output, f"[{result.usage.total_tokens} tokens]")
    for message in result.all_messages():
        for part in message.parts:
            print("  ", part.part_kind, getattr(part, "content", None) or getattr(part, "args", ""))


asyncio.run(main())
