"""A typed answer that is judged and asked for again, with settings and a timeout, said once; then an answer as it is written."""

import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.settings import ModelSettings


class Forecast(BaseModel):
    city: str
    rain_mm: int


model = OpenAIChatModel("simulated")
agent = Agent(model, instructions="You forecast rain.", model_settings=ModelSettings(temperature=0.7))
typed_agent = Agent(
    model,
    instructions="You forecast rain.",
    output_type=NativeOutput(Forecast),
    retries=2,
    model_settings=ModelSettings(temperature=0.0, seed=7, timeout=60),
)


@typed_agent.output_validator
async def never_dry(forecast: Forecast) -> Forecast:
    if forecast.rain_mm == 0:
        raise ModelRetry("it always rains in Bergen.")
    return forecast


once = {}


async def forecast(key, prompt):
    if key not in once:
        once[key] = asyncio.ensure_future(asyncio.wait_for(typed_agent.run(prompt), 60))
    return await once[key]


async def main():
    typed = await forecast("question-1", "Tomorrow in Bergen?")
    print(f"{typed.output.city}: {typed.output.rain_mm} mm, after {typed.usage.requests} steps")
    print("the same again:", (await forecast("question-1", "Tomorrow in Bergen?")).output.rain_mm, "mm")
    async with agent.run_stream("So?", message_history=typed.all_messages()) as run:
        async for text in run.stream_text(delta=True):
            print(text, end="|")
        print(f"\n{run.usage.total_tokens} tokens in all")


asyncio.run(main())
