/**
 * The client, and its defaults from the environment.
 *
 * Invariants: it runs without Node; the token of this machine's server is sent to no other machine.
 */

import { Busy, ConnectionFailed } from "./errors.js";
import { Operations } from "./operations.js";
import { Patience, Transport, type RequestOptions } from "./transport.js";
import type { ConsumerEvents } from "./types.js";

const URL_ = "http://127.0.0.1:7878";

/** The settings of a client. */
export interface ClientOptions {
  /** The server's address; without it that of `GREENROOM_URL`, or http://127.0.0.1:7878. */
  url?: string;
  /**
   * The token; without it that of `GREENROOM_TOKEN`. For a server on this machine, the file `token` in the store's directory is
   * read otherwise.
   */
  token?: string;
  /**
   * How long to wait for an answer, in milliseconds (300,000; Node waits no longer). Streams and prompts have no such limit: a
   * lost connection is noticed within 30 seconds.
   */
  timeoutMs?: number;
  /**
   * How often a request is sent again if that is safe (5): after a lost connection, and after 429 and 503. A stream that has
   * begun reconnects without a limit.
   */
  retries?: number;
  /** The function that sends requests. */
  fetch?: typeof fetch;
}

/** What `consume` takes. */
export interface ConsumeParams {
  /** Only sessions with these labels, and the sub-agents below them. */
  labels?: Record<string, string>;
  /** The most events of a batch, 1 to 1,000 (100). */
  max?: number;
  /** For exactly once: the `position` that was stored with the results of the last batch. */
  commit?: string;
}

/** A client of `greenroom serve`. */
export class Client extends Operations {
  readonly #transport: Transport;

  constructor(options: ClientOptions = {}) {
    const url = options.url ?? environment("GREENROOM_URL") ?? URL_;
    const transport = new Transport({
      url,
      token: options.token ?? environment("GREENROOM_TOKEN") ?? tokenOfThisMachine(url),
      timeoutMs: options.timeoutMs ?? 300_000,
      retries: options.retries ?? 5,
      fetch: options.fetch ?? globalThis.fetch.bind(globalThis),
    });
    super(transport);
    this.#transport = transport;
  }

  /**
   * Reads every durable event at least once, in batches, without an end.
   *
   * A batch is committed when the next one is asked for. So if the loop's body throws, or the program dies, the batch comes
   * again. It also comes again after a `break`.
   *
   * @param name The consumer's name, under which the server stores how far it has come.
   */
  async *consume(
    name: string,
    params: ConsumeParams = {},
    options: RequestOptions = {},
  ): AsyncGenerator<ConsumerEvents, void, undefined> {
    const { retries, timeoutMs } = this.#transport.options;
    const patience = new Patience(retries, options.signal);
    let { commit, ...others } = params;
    for (;;) {
      let batch: ConsumerEvents;
      try {
        const wait_ms = Math.floor(Math.min(20_000, timeoutMs / 2));
        batch = await this.consumer.read(name, { ...others, commit: commit ?? null, wait_ms }, options);
      } catch (error) {
        if (!(error instanceof ConnectionFailed || error instanceof Busy)) throw error;
        await patience.wait(error);
        continue;
      }
      patience.succeeded(true);
      commit = batch.position ?? undefined;
      if (batch.events.length) yield batch;
    }
  }
}

interface Process {
  env?: Record<string, string | undefined>;
  getBuiltinModule?: (name: "node:fs") => { readFileSync(path: string, encoding: "utf8"): string };
}

const node = (globalThis as { process?: Process }).process;

function environment(name: string): string | undefined {
  return node?.env?.[name] || undefined;
}

function tokenOfThisMachine(url: string): string | undefined {
  if (!["127.0.0.1", "[::1]", "localhost"].includes(new URL(url).hostname)) return undefined;
  const base = environment("XDG_DATA_HOME");
  const data = base?.startsWith("/") ? base : `${environment("HOME") ?? ""}/.local/share`;
  const dir = environment("GREENROOM_DATA_DIR") ?? `${data}/greenroom`;
  try {
    return node?.getBuiltinModule?.("node:fs").readFileSync(`${dir}/token`, "utf8").trim();
  } catch {
    return undefined;
  }
}
