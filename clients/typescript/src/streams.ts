/**
 * Streams of events: of sessions, and of work until its outcome.
 *
 * Invariants: a stream that was lost continues after the last event that it returned, so no durable event is missing or there
 * twice. Work is sent again only with an idempotency key. A stream is read once; a `break` ends it.
 */

import { ApiError, Busy, ConnectionFailed, GreenroomError } from "./errors.js";
import { Patience, withKey, type RequestOptions, type Transport } from "./transport.js";
import type { Accepted, Event, HttpProblem } from "./types.js";

/** Transient events were left out, because they were read too slowly. Durable ones never are. */
export interface Gap {
  type: "gap";
}

/** A session could not be read; the stream continues with the others. */
export interface StreamProblem {
  type: "problem";
  problem: HttpProblem;
}

/** What a stream has. */
export type StreamItem = Event | Gap | StreamProblem;

interface Message {
  name: string;
  data: string;
  id: string | undefined;
}

/** The messages of a stream of server-sent events. One that is cut off is left out. */
async function* messages(texts: AsyncGenerator<string, void, undefined>): AsyncGenerator<Message, void, undefined> {
  let rest = "";
  let name = "";
  let data: string[] = [];
  let id: string | undefined;
  for await (const text of texts) {
    const lines = (rest + text).split("\n");
    rest = lines.pop() ?? "";
    for (const ended of lines) {
      const line = ended.replace(/\r$/, "");
      const [, field, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line) ?? [];
      if (line === "") {
        if (data.length || id !== undefined) yield { name, data: data.join("\n"), id };
        [name, data, id] = ["", [], undefined];
      } else if (field === "data") data.push(value);
      else if (field === "event") name = value;
      else if (field === "id") id = value;
    }
  }
}

abstract class Stream implements AsyncIterable<StreamItem> {
  /** The position after the last event that was returned, at which another stream can continue (`after`). */
  position: string | undefined;
  readonly #items: AsyncGenerator<StreamItem, void, undefined>;

  constructor() {
    this.#items = this.read();
  }

  protected abstract read(): AsyncGenerator<StreamItem, void, undefined>;

  [Symbol.asyncIterator](): AsyncGenerator<StreamItem, void, undefined> {
    return this.#items;
  }
}

/** The events of sessions, without an end. It reconnects by itself, and continues behind its last event. */
export class EventStream extends Stream {
  readonly #transport: Transport;
  readonly #target: string;
  readonly #query: object;
  readonly #options: RequestOptions;

  constructor(transport: Transport, target: string, query: { after?: string }, options: RequestOptions) {
    super();
    const { after, ...others } = query;
    this.position = after;
    this.#transport = transport;
    this.#target = target;
    this.#query = others;
    this.#options = options;
  }

  protected async *read(): AsyncGenerator<StreamItem, void, undefined> {
    const patience = new Patience(this.#transport.options.retries, this.#options.signal);
    for (;;) {
      let lost: ConnectionFailed | Busy | undefined;
      let problem: HttpProblem | undefined;
      try {
        const sent = { query: this.#query };
        const texts = this.#transport.stream("GET", this.#target, sent, this.position, this.#options);
        for await (const message of messages(texts)) {
          patience.succeeded(true);
          problem = message.name === "problem" ? (JSON.parse(message.data) as HttpProblem) : undefined;
          this.position = message.id ?? this.position;
          if (problem) yield { type: "problem", problem };
          else if (message.data) yield JSON.parse(message.data) as StreamItem;
        }
      } catch (error) {
        if (!(error instanceof ConnectionFailed || error instanceof Busy)) throw error;
        lost = error;
      }
      // The server ends a stream with a problem if it cannot go on.
      if (problem) throw ApiError.of(problem);
      await patience.wait(lost);
    }
  }
}

/**
 * The events of a session from the acceptance of work until its outcome.
 *
 * With an idempotency key, which prompts always have, a lost stream is taken up again, also after a restart of the server.
 */
export class WorkStream<Outcome> extends Stream {
  /** What was accepted, once it was. */
  accepted: Accepted | undefined;
  readonly #transport: Transport;
  readonly #target: string;
  readonly #body: object;
  readonly #hasKey: boolean;
  readonly #options: RequestOptions;
  #outcome: { is: Outcome } | undefined;

  constructor(transport: Transport, target: string, body: object, takesKey: boolean, options: RequestOptions) {
    super();
    this.#transport = transport;
    this.#target = target;
    this.#body = takesKey ? withKey(body) : body;
    this.#hasKey = takesKey;
    this.#options = options;
  }

  /**
   * Reads to the end, and returns the outcome.
   *
   * @throws {ApiError} The work failed.
   */
  async outcome(): Promise<Outcome> {
    for await (const _ of this);
    if (!this.#outcome) throw new GreenroomError("the stream was left before the outcome");
    return this.#outcome.is;
  }

  protected async *read(): AsyncGenerator<StreamItem, void, undefined> {
    const patience = new Patience(this.#transport.options.retries, this.#options.signal);
    for (;;) {
      try {
        const sent = { body: this.#body };
        const texts = this.#transport.stream("POST", this.#target, sent, this.position, this.#options);
        for await (const message of messages(texts)) {
          patience.succeeded();
          this.position = message.id ?? this.position;
          if (message.name === "problem") throw ApiError.of(JSON.parse(message.data) as HttpProblem);
          if (message.name === "result") {
            this.#outcome = { is: JSON.parse(message.data) as Outcome };
            return;
          }
          if (message.name === "accepted") this.accepted = JSON.parse(message.data) as Accepted;
          else if (message.data) yield JSON.parse(message.data) as StreamItem;
        }
        throw new ConnectionFailed("the stream ended before the outcome", true);
      } catch (error) {
        if (!(error instanceof ConnectionFailed || error instanceof Busy)) throw error;
        if (!this.#hasKey && !(error instanceof ConnectionFailed && !error.wasSent)) throw error;
        await patience.wait(error);
      }
    }
  }
}
