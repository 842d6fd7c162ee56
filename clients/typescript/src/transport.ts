/**
 * Requests over HTTP: retries and errors.
 *
 * Invariants: a request that the server may have received is sent again only if that is safe (`GET`, or with an idempotency
 * key). An aborted signal ends everything with its reason.
 */

import { ApiError, Busy, ConnectionFailed } from "./errors.js";
import type { HttpProblem } from "./types.js";

/** A stream that sends nothing for so long is lost: the server sends a comment every 10 seconds. */
const SILENCE_MS = 30_000;
/** The longest `Retry-After` that is waited for. */
const WAIT_MAX_S = 60;

/** What can be set for one request. */
export interface RequestOptions {
  /** Ends the request or the stream. What the server does for it continues. */
  signal?: AbortSignal;
}

/** The settings of a transport. */
export interface TransportOptions {
  url: string;
  token: string | undefined;
  timeoutMs: number;
  retries: number;
  fetch: typeof fetch;
}

interface Sent {
  query?: object;
  body?: object;
  takesKey?: boolean;
  isAsync?: boolean;
}

/** A path with these values in place of the names in braces. */
export function path(template: string, ...values: string[]): string {
  return template.replace(/\{\w+\}/g, () => encodeURIComponent(values.shift() ?? ""));
}

/** A body with an idempotency key: its own, or a new one. */
export function withKey(body: object): object {
  return { key: crypto.randomUUID(), ...body };
}

function inQuery(query: object): string {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === undefined || value === null) continue;
    if (typeof value === "object") {
      // Labels, the only objects in queries.
      for (const [label, text] of Object.entries(value)) pairs.append("label", `${label}:${text}`);
    } else {
      pairs.append(name, String(value));
    }
  }
  const text = pairs.toString();
  return text && `?${text}`;
}

/** Decides whether a failed request is tried again, and waits before that. */
export class Patience {
  #retries: number;
  readonly #signal: AbortSignal | undefined;
  #failed = 0;

  constructor(retries: number, signal: AbortSignal | undefined) {
    this.#retries = retries;
    this.#signal = signal;
  }

  succeeded(andNeverGivesUp = false): void {
    this.#failed = 0;
    if (andNeverGivesUp) this.#retries = Infinity;
  }

  /** Waits, or throws the error: after too many, or if the server asks for more patience than we have. */
  async wait(error?: ConnectionFailed | Busy): Promise<void> {
    this.#failed += 1;
    const after = error instanceof Busy ? error.retryAfter : undefined;
    if (error && (this.#failed > this.#retries || (after ?? 0) > WAIT_MAX_S)) throw error;
    const pause = Math.min(10_000, 250 * 2 ** Math.min(this.#failed, 6)) * (0.5 + Math.random() / 2);
    const signal = this.#signal;
    await new Promise<void>((resolve, reject) => {
      const stop = (): void => {
        clearTimeout(timer);
        reject(signal?.reason);
      };
      const timer = setTimeout(() => {
        signal?.removeEventListener("abort", stop);
        resolve();
      }, after === undefined ? pause : after * 1000);
      if (signal?.aborted) stop();
      signal?.addEventListener("abort", stop, { once: true });
    });
  }
}

/** Sends requests to one server. */
export class Transport {
  readonly options: TransportOptions;

  constructor(options: TransportOptions) {
    this.options = { ...options, url: options.url.replace(/\/+$/, "") };
  }

  /** Sends a request, and returns the answer's JSON. */
  async call<T>(verb: string, target: string, sent: Sent, options: RequestOptions): Promise<T> {
    const isRepeatable = verb === "GET" || sent.takesKey === true;
    const body = sent.takesKey ? withKey(sent.body ?? {}) : sent.body;
    const headers: Record<string, string> = sent.isAsync ? { prefer: "respond-async" } : {};
    const text = await this.#patient(isRepeatable, options, (signal) =>
      this.#send(verb, target + inQuery(sent.query ?? {}), body, headers, signal),
    );
    try {
      return JSON.parse(text) as T;
    } catch (error) {
      // Not of the server, but of a proxy before it.
      throw new ConnectionFailed(`the answer is not JSON: ${String(error)}`, true);
    }
  }

  /** Sends a request, and returns the answer as text. */
  text(verb: string, target: string, query: object, options: RequestOptions): Promise<string> {
    return this.#patient(verb === "GET", options, (signal) =>
      this.#send(verb, target + inQuery(query), undefined, {}, signal),
    );
  }

  /** Opens a stream of events, without retries, and yields its text. */
  async *stream(
    verb: string,
    target: string,
    sent: { query?: object; body?: object },
    lastEventId: string | undefined,
    options: RequestOptions,
  ): AsyncGenerator<string, void, undefined> {
    const ended = new AbortController();
    const stop = (): void => ended.abort(options.signal?.reason);
    if (options.signal?.aborted) stop();
    options.signal?.addEventListener("abort", stop, { once: true });
    let timer: ReturnType<typeof setTimeout> | undefined;
    const heard = (): void => {
      clearTimeout(timer);
      timer = setTimeout(() => ended.abort(new Error("the stream is silent")), SILENCE_MS);
    };
    try {
      heard();
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (lastEventId) headers["last-event-id"] = lastEventId;
      const target_ = target + inQuery(sent.query ?? {});
      const answer = await this.#send(verb, target_, sent.body, headers, ended.signal);
      const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        heard();
        const { done, value } = (await reader?.read()) ?? { done: true, value: undefined };
        if (done) return;
        yield value;
      }
    } catch (error) {
      throw options.signal?.aborted || error instanceof ApiError ? error : failed(error);
    } finally {
      clearTimeout(timer);
      options.signal?.removeEventListener("abort", stop);
      ended.abort();
    }
  }

  async #patient(
    isRepeatable: boolean,
    options: RequestOptions,
    send: (signal: AbortSignal) => Promise<Response>,
  ): Promise<string> {
    const patience = new Patience(this.options.retries, options.signal);
    for (;;) {
      try {
        const timeout = AbortSignal.timeout(this.options.timeoutMs);
        const signal = options.signal ? AbortSignal.any([options.signal, timeout]) : timeout;
        return await (await send(signal)).text();
      } catch (error) {
        if (options.signal?.aborted) throw error;
        const known = error instanceof ApiError ? error : failed(error);
        const isSafe = isRepeatable || (known instanceof ConnectionFailed && !known.wasSent);
        if (!isSafe || !(known instanceof ConnectionFailed || known instanceof Busy)) throw known;
        await patience.wait(known);
      }
    }
  }

  async #send(
    verb: string,
    target: string,
    body: object | undefined,
    headers: Record<string, string>,
    signal: AbortSignal,
  ): Promise<Response> {
    const { url, token, fetch } = this.options;
    const all: Record<string, string> = { ...headers };
    if (token) all.authorization = `Bearer ${token}`;
    if (body) all["content-type"] = "application/json";
    const content = body ? JSON.stringify(body) : null;
    const answer = await fetch(url + target, { method: verb, headers: all, body: content, signal, redirect: "manual" });
    if (answer.ok) return answer;
    throw await refused(answer);
  }
}

/** What `fetch` could not do, or could not finish. */
function failed(error: unknown): ConnectionFailed {
  if (error instanceof ConnectionFailed) return error;
  const cause = error instanceof Error ? (error.cause as { code?: string } | undefined) : undefined;
  const isUnsent = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"].includes(cause?.code ?? "");
  return new ConnectionFailed(error, !isUnsent);
}

async function refused(answer: Response): Promise<ApiError> {
  const text = await answer.text();
  let problem: Partial<HttpProblem>;
  try {
    problem = JSON.parse(text) as Partial<HttpProblem>;
    if (typeof problem.detail !== "string") throw new Error("it is not a problem");
  } catch {
    // Not of the server, but of a proxy before it.
    problem = { type: "about:blank", title: answer.statusText, detail: text.slice(0, 200) || answer.statusText };
  }
  const after = answer.headers.get("retry-after") ?? "";
  const whole = { kind: "other", class: "other", retryable: false, ...problem, status: answer.status };
  return ApiError.of(whole as HttpProblem, /^\d+$/.test(after) ? Number(after) : undefined);
}
