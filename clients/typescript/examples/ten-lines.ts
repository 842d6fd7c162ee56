/** Sends a prompt, and prints the answer while it is written. */
import { Client } from "greenroom-client";

const client = new Client(); // the server that GREENROOM_URL and GREENROOM_TOKEN name, or that of this machine
const stream = client.session.promptStream("umbrella", { text: process.argv.slice(2).join(" ") || "Umbrella in Oslo?" });
for await (const event of stream) {
  if (event.type === "message_delta" && event.delta.kind === "text") process.stdout.write(event.delta.text);
}
const { session } = await client.session.get("umbrella");
console.log(`\n${(await stream.outcome()).steps} step(s), ${session.entries} entries`);
