"""A program's own agent, tested with a scripted model."""

import pytest
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel

pytestmark = pytest.mark.anyio
agent = Agent(instructions="You serve a shop.")


@pytest.fixture
def anyio_backend():
    return "asyncio"


@agent.tool_plain
async def refund(number: int) -> str:
    """Pays an order back."""
    if number < 100:
        return f"order {number} is paid back"
    raise ModelRetry("no such order")


def scripted(*answers):
    """A model that says these, each after a look at what it was sent; it fails where the script is short."""
    left, seen = list(answers), []

    def answer(messages, info):
        assert left, "the script is short"
        seen.append(messages)
        check, said = left.pop(0)
        check(messages, info)
        return ModelResponse(parts=[said])

    return FunctionModel(answer), left, seen


def parts(messages, kind):
    return [part for message in messages for part in message.parts if isinstance(part, kind)]


async def test_it_pays_back():
    def is_asked(messages, info):
        assert "money back" in parts(messages, UserPromptPart)[-1].content
        assert "shop" in info.instructions

    def is_told(messages, info):
        assert "order 7 is paid back" in parts(messages, ToolReturnPart)[-1].content

    model, left, _ = scripted((is_asked, ToolCallPart("refund", {"number": 7})), (is_told, TextPart("Done.")))
    result = await agent.run("I want my money back for order 7.", model=model)
    assert result.output == "Done."
    assert [call.args for call in parts(result.all_messages(), ToolCallPart) if call.tool_name == "refund"] == [
        {"number": 7}
    ]
    assert not left


async def test_it_hears_of_a_mistake_and_asks():
    def is_told(messages, info):
        assert "no such order" in str(messages[-1].parts)

    def any_request(messages, info):
        pass

    model, left, _ = scripted(
        (any_request, ToolCallPart("refund", {"number": 700})), (is_told, TextPart("Which order?"))
    )
    assert (await agent.run("Money back for 700!", model=model)).output == "Which order?"
    assert not left


async def test_it_goes_on_with_a_conversation():
    def has_history(messages, info):
        assert len(messages) == 5

    history = [
        ModelRequest(parts=[UserPromptPart("Pay back order 7.")]),
        ModelResponse(parts=[ToolCallPart("refund", {"number": 7}, tool_call_id="1")]),
        ModelRequest(parts=[ToolReturnPart("refund", "order 7 is paid back", tool_call_id="1")]),
        ModelResponse(parts=[TextPart("Done.")]),
    ]
    model, left, _ = scripted((has_history, TextPart("On Monday.")))
    assert (await agent.run("When?", model=model, message_history=history)).output == "On Monday."
    assert not left
