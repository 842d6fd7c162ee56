"""Sends a prompt, and prints the answer while it is written."""

import sys
from greenroom_client import Client

client = Client()  # the server that GREENROOM_URL and GREENROOM_TOKEN name, or that of this machine
with client.session.prompt_stream("umbrella", text=" ".join(sys.argv[1:]) or "Umbrella in Oslo?") as stream:
    for event in stream:
        if event["type"] == "message_delta" and event["delta"]["kind"] == "text":
            print(event["delta"]["text"], end="", flush=True)
print(f"\n{stream.outcome()['steps']} step(s), {client.session.get('umbrella')['session']['entries']} entries")
