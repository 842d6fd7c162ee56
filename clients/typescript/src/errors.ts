/**
 * The errors of the client.
 *
 * Invariants: what the client throws on purpose is a `GreenroomError`, except the reason of an aborted signal; an answer of the
 * server with an error status is an `ApiError`, of the class that belongs to its status.
 */

import type { Failure, HttpProblem, ProblemKind } from "./types.js";

/** Every error of the client. */
export class GreenroomError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The server cannot be reached, the connection was lost, or no answer came in time. */
export class ConnectionFailed extends GreenroomError {
  /** Whether the server may have received the request. */
  readonly wasSent: boolean;

  constructor(reason: unknown, wasSent: boolean) {
    const cause = reason instanceof Error ? (reason.cause ?? reason) : reason;
    super(cause instanceof Error ? cause.message || cause.name : String(cause), { cause: reason });
    this.wasSent = wasSent;
  }
}

/** The server refused the request, or its work failed. */
export class ApiError extends GreenroomError {
  /** The problem as the server described it (RFC 9457). */
  readonly problem: HttpProblem;
  /** When to try again, in seconds. */
  readonly retryAfter: number | undefined;

  constructor(problem: HttpProblem, retryAfter?: number) {
    super(`${problem.status} ${problem.kind}: ${problem.detail}`);
    this.problem = problem;
    this.retryAfter = retryAfter;
  }

  /** The HTTP status. */
  get status(): number {
    return this.problem.status;
  }

  /** The class of the problem, for programs. */
  get kind(): ProblemKind {
    return this.problem.kind;
  }

  /** A description and, if known, the remedy. */
  get detail(): string {
    return this.problem.detail;
  }

  /** Whether the same request may succeed later, unchanged. */
  get retryable(): boolean {
    return this.problem.retryable;
  }

  /** The model's failure, if it is one. */
  get failure(): Failure | undefined {
    return this.problem.failure ?? undefined;
  }

  /** The error of the class that belongs to the status. */
  static of(problem: HttpProblem, retryAfter?: number): ApiError {
    return new (classes[problem.status] ?? ApiError)(problem, retryAfter);
  }
}

/** 400: the request is invalid as it is. */
export class InvalidRequest extends ApiError {}
/** 401: there is no valid token. */
export class Unauthorized extends ApiError {}
/** 403: the token does not permit the request. */
export class Forbidden extends ApiError {}
/** 404: there is no such session, question or route. */
export class NotFound extends ApiError {}
/** 409: not possible in the session's present state. */
export class Conflict extends ApiError {}
/** 429 and 503: busy, stopping, or interrupted by a stop. */
export class Busy extends ApiError {}
/** 502: the model call failed, and recovery did not help. */
export class ModelFailed extends ApiError {}
/** 504: the reply did not arrive within `timeout_s`. */
export class TimedOut extends ApiError {}

const classes: Record<number, typeof ApiError> = {
  400: InvalidRequest,
  401: Unauthorized,
  403: Forbidden,
  404: NotFound,
  409: Conflict,
  429: Busy,
  502: ModelFailed,
  503: Busy,
  504: TimedOut,
};
