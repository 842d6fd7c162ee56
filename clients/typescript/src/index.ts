/** A client of Greenroom's HTTP API (`greenroom serve`), with nothing but `fetch`. */

export { Client, type ClientOptions, type ConsumeParams } from "./client.js";
export * from "./errors.js";
export { EventStream, WorkStream, type Gap, type StreamItem, type StreamProblem } from "./streams.js";
export type { RequestOptions } from "./transport.js";
export type * from "./types.js";
