/** Servers for the tests: `greenroom serve --simulate`, and one that answers what a test says. */

import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const binary = process.env.GREENROOM_BINARY ?? join(process.cwd(), "../../target/debug/greenroom");

/** A server with a store and a workspace of its own, which can be killed and started again at the same address. */
export class Server {
  readonly #dir = mkdtempSync(join(tmpdir(), "greenroom-client-"));
  readonly data = join(this.#dir, "data");
  readonly #flags: string[];
  #address = "127.0.0.1:0";
  #process: ChildProcess | undefined;

  private constructor(flags: string[]) {
    this.#flags = flags;
    mkdirSync(this.#workspace);
    for (const number of [0, 1, 2]) {
      writeFileSync(join(this.#workspace, `file${number}.txt`), `line ${number}\n`.repeat(20));
    }
  }

  static async started(...flags: string[]): Promise<Server> {
    const server = new Server(flags);
    await server.start();
    return server;
  }

  get #workspace(): string {
    return join(this.#dir, "workspace");
  }

  async start(): Promise<void> {
    const { PATH, HOME, TMPDIR } = process.env;
    const flags = ["serve", "--simulate", "--data-dir", this.data, "--listen", this.#address, ...this.#flags];
    const child = spawn(binary, flags, { cwd: this.#workspace, env: { PATH, HOME, TMPDIR }, stdio: ["ignore", "pipe", "pipe"] });
    this.#process = child;
    this.#address = await new Promise<string>((resolve, reject) => {
      for (const output of [child.stdout, child.stderr]) {
        createInterface(output).on("line", (line) => {
          const address = /serves http:\/\/(\S+);/.exec(line)?.[1];
          if (address) resolve(address);
        });
      }
      child.on("exit", () => reject(new Error("the server did not start")));
    });
  }

  async stop(how: NodeJS.Signals = "SIGINT"): Promise<void> {
    const child = this.#process;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const exited = once(child, "exit");
    child.kill(how);
    await exited;
  }

  async close(): Promise<void> {
    await this.stop("SIGKILL");
    rmSync(this.#dir, { recursive: true });
  }

  get url(): string {
    return `http://${this.#address}`;
  }

  get token(): string {
    return readFileSync(join(this.data, "token"), "utf8");
  }
}

/** An answer, or a connection that is closed without one. */
export type Answer = { status: number; headers?: Record<string, string>; text: string } | undefined;

/** What a request was. */
export interface Seen {
  verb: string;
  target: string;
  body: string;
}

/** Calls `use` with the address of a server that gives these answers, in their order; returns the requests. */
export async function scripted(answers: Answer[], use: (url: string) => Promise<void>): Promise<Seen[]> {
  const left = [...answers];
  const seen: Seen[] = [];
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    seen.push({ verb: request.method ?? "", target: request.url ?? "", body });
    const answer = left.shift();
    if (!answer) {
      request.socket.destroy();
      return;
    }
    response.writeHead(answer.status, answer.headers);
    response.end(answer.text);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  try {
    await use(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  } finally {
    server.closeAllConnections();
    server.close();
  }
  return seen;
}
