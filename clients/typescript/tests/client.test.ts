/** The client against a server: `npm test`. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { promisify } from "node:util";

import { ApiError, Busy, Client, ConnectionFailed, Conflict, GreenroomError, InvalidRequest, NotFound, Unauthorized } from "greenroom-client";

import { scripted, Server, type Answer, type Seen } from "./serving.js";

let server: Server;
let client: Client;

before(async () => {
  server = await Server.started("--no-tools");
  client = new Client({ url: server.url, token: server.token });
});
after(() => server.close());

test("every operation", async () => {
  const { session, agent, models, consumer } = client;
  const prompted = await session.prompt("s", { text: "first", settings: { temperature: 0.5 }, timeout_s: 60 });
  assert.deepEqual([prompted.entry_id, prompted.stop], [0, "stop"]);
  // Enough for a compaction.
  for (const text of [1, 2].map(() => "alpha beta gamma ".repeat(1000))) await session.prompt("s", { text });
  await session.start({ session_id: "s" });
  await session.setLabel("s", "user", { value: "ada" });
  await session.setTitle("s", { title: "A title" });
  const listed = await session.list({ labels: { user: "ada" }, order: "newest", counts: true });
  assert.deepEqual(listed.sessions.map((known) => [known.id, known.title]), [["s", "A title"]]);
  assert.equal((await session.get("s")).session.labels?.user, "ada");
  assert.equal((await session.find({ prefix: "s" })).session_id, "s");
  assert.equal((await session.show("s")).conversation[0]?.role, "user");
  assert.ok((await session.recall({ query: "first" })).found.length);
  assert.equal((await session.replay("s", { limit: 1 })).events[0]?.type, "message_end");
  assert.deepEqual((await session.inbox("s")).inputs, []);
  assert.equal((await session.clearInbox("s")).withdrawn, 0);
  assert.ok((await session.context("s")).parts.length);
  assert.equal((await session.tree("s")).branches.length, 1);
  assert.equal((await session.entries("s", { from: 0, limit: 1 })).entries[0]?.type, "user");
  assert.ok((await session.live()).sessions.length);
  assert.deepEqual((await session.inProgress("s")).events, []);
  assert.deepEqual((await session.questions()).questions, []);
  assert.ok(await session.plan("s", { keep_recent: 10 }));
  const compacted = await session.compact("s", { force: true, keep_recent: 10 });
  assert.ok(compacted.installed && compacted.compacted.outcome === "completed");
  assert.equal((await session.compactions("s")).compactions.length, 1);
  assert.equal((await session.compaction("s")).number, 1);
  assert.ok((await session.undoCompaction("s")).context);
  assert.equal((await session.pin("s", { entry_id: 0 })).pins.length, 1);
  assert.equal((await session.pins("s")).pins.length, 1);
  assert.equal((await session.fork("s", { to: "fork" })).session_id, "fork");
  await session.branch("fork", { entry_id: null });
  assert.deepEqual((await session.rewind("s", { dry_run: true })).files, []);
  assert.equal((await agent.state("s")).status, "idle");
  assert.deepEqual((await agent.tools()).tools, []);
  await agent.abort("s");
  assert.ok((await models.list()).origin);
  assert.equal((await models.forget({ model: "none" })).was_known, false);
  assert.ok((await consumer.read("of-all", { labels: { user: "ada" } })).events.length);
  assert.ok(await consumer.list());
  assert.ok(await consumer.delete("of-all"));
  await session.steer("s", { text: "more" });
  await session.followUp("s", { text: "and more" });
  const submitted = await session.promptSubmit("s", { text: "later", key: "1" });
  assert.equal((await session.prompt("s", { text: "later", key: "1" })).entry_id, submitted.entry_id);
  assert.ok((await session.delete("fork")).session_id);
  const { text } = await session.export("s");
  assert.equal((await session.import("imported", { text })).session_id, "imported");
  assert.equal(await client.healthz(), "ok");
  assert.ok(await client.readyz());
  assert.match(await client.metrics(), /^# HELP/m);
  assert.equal((await client.openapi()).openapi, "3.1.0");
});

test("a prompt streams its answer", async () => {
  const stream = client.session.promptStream("streamed", { text: "question" });
  const texts: string[] = [];
  const numbers: number[] = [];
  for await (const event of stream) {
    if (event.type === "message_delta" && event.delta.kind === "text") texts.push(event.delta.text);
    if (event.type !== "gap" && event.type !== "problem" && event.n === undefined) numbers.push(event.seq);
  }
  const reply = await stream.outcome();
  assert.ok(texts.length > 1 && texts.join("").endsWith(reply.text));
  assert.deepEqual(numbers, [...numbers.keys()]);
  assert.equal(stream.accepted?.entry_id, reply.entry_id);
  const later = client.session.events("streamed", { after: stream.position, durable: true });
  await client.session.setTitle("streamed", { title: "new" });
  for await (const event of later) {
    assert.equal("seq" in event && event.seq, numbers.length);
    break;
  }
});

test("a prompt is repeated by its key", async () => {
  const first = await client.session.prompt("repeated", { text: "question", key: "once" });
  const again = await client.session.prompt("repeated", { text: "question", key: "once" });
  assert.deepEqual([again.entry_id, again.text], [first.entry_id, first.text]);
  assert.notEqual((await client.session.prompt("repeated", { text: "question" })).entry_id, first.entry_id);
});

test("a stream that is left, or whose signal is aborted, ends", async () => {
  const left = client.session.promptStream("left", { text: "question" });
  for await (const _ of left) break;
  await assert.rejects(left.outcome(), GreenroomError);
  const controller = new AbortController();
  const following = client.events({ after: "0" }, { signal: controller.signal });
  const follow = async (): Promise<void> => {
    for await (const _ of following) controller.abort(new Error("enough"));
  };
  await assert.rejects(follow(), { message: "enough" });
});

test("a consumer gets again what it did not commit", async () => {
  for (const id of ["consumed-0", "consumed-1"]) {
    await client.session.prompt(id, { text: "question" });
    await client.session.setLabel(id, "for", { value: "consumer" });
  }
  const read = async (batches: number, commit?: string): Promise<Array<[string, string | null | undefined]>> => {
    const found: Array<[string, string | null | undefined]> = [];
    const start = commit === undefined ? {} : { commit };
    for await (const batch of client.consume("audit", { labels: { for: "consumer" }, max: 1, ...start })) {
      found.push([batch.events.map((event) => `${event.session_id} ${event.seq}`).join(), batch.position]);
      if (found.length === batches) break;
    }
    return found;
  };
  const first = await read(3);
  const second = await read(2);
  assert.deepEqual(second[0], first[2], "the batch that was not committed comes again");
  assert.ok(!first.some(([events]) => events === second[1]?.[0]));
  const third = await read(1, second[0]?.[1] ?? "");
  assert.deepEqual(third[0], second[1], "a stored position is where it continues");
  const known = (await client.consumer.list()).consumers.find((consumer) => consumer.name === "audit");
  assert.ok((known?.lag ?? 0) > 0);
});

test("errors have their class", async () => {
  const error = await client.session.get("none").catch((error: unknown) => error);
  assert.ok(error instanceof NotFound);
  assert.deepEqual([error.status, error.kind, error.retryable, error.name], [404, "no_session", false, "NotFound"]);
  assert.match(error.detail, /none/);
  await assert.rejects(client.session.events("no session/?", { after: "0" })[Symbol.asyncIterator]().next(), NotFound);
  await assert.rejects(client.session.prompt("s", { text: " " }), InvalidRequest);
  await assert.rejects(new Client({ url: server.url, token: "x".repeat(32) }).session.list(), Unauthorized);
  let gone = "";
  await scripted([], async (url) => void (gone = url));
  const refused = await new Client({ url: gone, retries: 0 }).session.list().catch((error: unknown) => error);
  assert.ok(refused instanceof ConnectionFailed && !refused.wasSent);
  assert.match(refused.message, /ECONNREFUSED/);
});

test("the example runs as it is", async () => {
  const lines = readFileSync("examples/ten-lines.ts", "utf8").split("\n").slice(1).filter(Boolean);
  assert.ok(lines.length <= 10);
  const env = { ...process.env, GREENROOM_URL: server.url, GREENROOM_DATA_DIR: server.data, GREENROOM_TOKEN: "" };
  const { stdout } = await promisify(execFile)(process.execPath, ["build/examples/ten-lines.js"], { env });
  assert.match(stdout, /\w+.*\n\d+ step\(s\), \d+ entries\n$/);
});

test("events continue after a restart", async () => {
  const server = await Server.started();
  try {
    const client = new Client({ url: server.url, token: server.token });
    const seen: number[] = [];
    const restarts: NodeJS.Signals[] = ["SIGTERM", "SIGKILL"];
    let last = Infinity;
    await client.session.prompt("a", { text: "question" });
    for await (const event of client.events({ after: "0", durable: true })) {
      if (event.type === "gap" || event.type === "problem") continue;
      seen.push(event.seq);
      if (event.type === "run_end") {
        const how = restarts.pop();
        if (how) {
          await server.stop(how);
          await server.start();
          await client.session.prompt("a", { text: "question" });
        } else {
          await client.session.setTitle("a", { title: "the end" });
          last = (await client.session.get("a")).session.entries - 1;
        }
      }
      if (event.seq >= last) break;
    }
    assert.deepEqual(seen, [...seen.keys()]);
    assert.equal(seen.length, last + 1);
  } finally {
    await server.close();
  }
});

test("a prompt survives a restart", async () => {
  const server = await Server.started();
  try {
    const client = new Client({ url: server.url, token: server.token });
    const numbers: number[] = [];
    const restarts: NodeJS.Signals[] = ["SIGKILL", "SIGKILL"];
    const stream = client.session.promptStream("a", { text: "question" });
    for await (const event of stream) {
      if (event.type === "gap" || event.type === "problem") continue;
      if (event.n === undefined) numbers.push(event.seq);
      const how = event.type === "tool_start" && restarts.pop();
      if (how) {
        await server.stop(how);
        await server.start();
      }
    }
    const reply = await stream.outcome();
    assert.deepEqual([reply.stop, reply.entry_id], ["stop", 0]);
    assert.deepEqual(restarts, []);
    assert.deepEqual(numbers, [...numbers.keys()]);
    assert.equal(numbers.length, (await client.session.get("a")).session.entries);
  } finally {
    await server.close();
  }
});

/** Makes the call against a server that gives these answers; `wanted` is the answer or the class of the error. */
async function check(answers: Answer[], call: (client: Client) => Promise<unknown>, wanted: unknown, requests: number): Promise<Seen[]> {
  let answer: unknown;
  const seen = await scripted(answers, async (url) => {
    answer = await call(new Client({ url, token: "t", retries: 2 })).catch((error: object) => error.constructor);
  });
  assert.deepEqual([answer, seen.length], [wanted, requests]);
  return seen;
}

const problem = { type: "about:blank", title: "x", detail: "no", kind: "busy", class: "other", retryable: true };
const refusal = (status: number, after = "0"): Answer => ({
  status,
  headers: { "retry-after": after },
  text: JSON.stringify({ ...problem, status }),
});
const ok: Answer = { status: 200, text: "{}" };

test("only what is safe is sent again", async () => {
  const reads = (client: Client): Promise<unknown> => client.models.list();
  const writes = (client: Client): Promise<unknown> => client.session.setTitle("a", { title: "b" });
  const submits = (client: Client): Promise<unknown> => client.session.promptSubmit("a", { text: "b" });
  await check([refusal(503), refusal(429), ok], reads, {}, 3);
  await check([refusal(503), refusal(503), refusal(503)], reads, Busy, 3);
  await check([refusal(503), ok], writes, Busy, 1);
  await check([undefined, ok], reads, {}, 2);
  await check([undefined, ok], writes, ConnectionFailed, 1);
  const bodies = (await check([undefined, refusal(503), ok], submits, {}, 3)).map((seen) => seen.body);
  assert.equal(new Set(bodies).size, 1, "the key is the same");
  assert.ok(JSON.parse(bodies[0] ?? "").key);
  await check([refusal(500), ok], reads, ApiError, 1);
  await check([{ status: 200, text: "<html>proxy" }, ok], reads, ConnectionFailed, 1);
  await check([refusal(503, "61"), ok], reads, Busy, 1);
});

test("a stream of work without a key is not sent again", async () => {
  const headers = { "content-type": "text/event-stream" };
  const begun = { status: 200, headers, text: 'id: 1,1.0.a\nevent: accepted\ndata: {"accepted": true}\n\ndata: {"type": "x"' };
  const result = { status: 200, headers, text: 'event: result\ndata: {"installed":\ndata: true}\n\n' };
  await check([begun, result], (client) => client.session.compact("a"), ConnectionFailed, 1);
  await check([begun, result], (client) => client.session.prompt("a", { text: "b" }), { installed: true }, 2);
  const aborted = { status: 200, headers, text: `event: problem\ndata: ${JSON.stringify({ ...problem, status: 409 })}\n\n` };
  const seen = await check([aborted], (client) => client.session.resume("a"), Conflict, 1);
  assert.deepEqual([seen[0]?.verb, seen[0]?.target], ["POST", "/v1/sessions/a/resume"]);
});

test("what is in the URL", async () => {
  const list = (client: Client): Promise<unknown> => client.session.list({ labels: { a: "b c", d: "e" }, roots: true, limit: 3 });
  const target = "/v1/sessions?label=a%3Ab+c&label=d%3Ae&roots=true&limit=3";
  assert.equal((await check([ok], list, {}, 1))[0]?.target, target);
  const seen = await check([ok], (client) => client.session.get("a/b ?ö"), {}, 1);
  assert.equal(seen[0]?.target, "/v1/sessions/a%2Fb%20%3F%C3%B6");
});
