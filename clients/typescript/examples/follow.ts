/** Shows what all sessions of a user do, from the beginning, across restarts of client and server. */
import { Client } from "greenroom-client";

const client = new Client();
for await (const event of client.events({ after: "0", labels: { user: "ada" }, durable: true })) {
  if (event.type === "run_end") console.log(event.session_id, event.outcome);
}
