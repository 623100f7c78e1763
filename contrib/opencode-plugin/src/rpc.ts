// JSON-RPC 2.0 over the daemon's Unix socket, one message a line. One connection, made anew
// with the next call once it is lost.

import { closeSync, openSync } from "node:fs"
import { connect, type Socket } from "node:net"
import { homedir } from "node:os"
import { basename, dirname, join } from "node:path"

type Message = { id?: number; method?: string; params?: unknown; result?: unknown; error?: Problem }
type Problem = { message?: string; data?: { kind?: string } }
type Waiting = { resolve: (value: unknown) => void; reject: (error: Error) => void }

export class Refused extends Error {
  constructor(
    message: string,
    readonly kind?: string,
  ) {
    super(message)
  }
}

/** Where the daemon listens, in the order in which it looks for its own place. */
export function socketPath(env: NodeJS.ProcessEnv = process.env): string {
  if (env["FALLBACKD_SOCKET"]) return env["FALLBACKD_SOCKET"]
  const runtime = env["XDG_RUNTIME_DIR"]
  if (runtime) return join(runtime, "fallbackd", "control.sock")
  const state = env["XDG_STATE_HOME"] || join(env["HOME"] || homedir(), ".local", "state")
  return join(state, "fallbackd", "control.sock")
}

const MAX_ADDRESS_BYTES = 107 // of a Unix socket, unix(7)

/** Connects also where the path is too long for an address: below the descriptor of its directory. */
function reach(path: string): Socket {
  if (Buffer.byteLength(path) <= MAX_ADDRESS_BYTES) return connect(path)
  let directory: number | undefined
  try {
    directory = openSync(dirname(path), "r")
  } catch {} // then the address below leads nowhere, and the socket says so
  const socket = connect(`/proc/self/fd/${directory}/${basename(path)}`)
  const done = () => {
    if (directory !== undefined) closeSync(directory)
    directory = undefined
  }
  for (const event of ["connect", "error", "close"]) socket.once(event, done)
  return socket
}

export class Daemon {
  private socket: Socket | undefined
  private opening: Promise<Socket> | undefined
  private readonly waiting = new Map<number, Waiting>()
  private rest = ""
  private last = 0
  private drop: (why: Error) => void = () => {}

  constructor(
    private readonly path: string,
    /** Called with each new connection, before anything else is asked on it. */
    private readonly onOpen: () => void = () => {},
    /** Called with each notification of the daemon. */
    private readonly onTold: (method: string, params: unknown) => void = () => {},
  ) {}

  get isOpen(): boolean {
    return this.socket !== undefined
  }

  async call<T>(method: string, params: object): Promise<T> {
    const socket = this.socket ?? (await this.open())
    const id = ++this.last
    return new Promise<T>((resolve, reject) => {
      this.waiting.set(id, { resolve: resolve as (value: unknown) => void, reject })
      socket.write(JSON.stringify({ jsonrpc: "2.0", id, method, params }) + "\n")
    })
  }

  /** Without an answer, and only where the connection is open already. */
  tell(method: string, params: object): void {
    this.socket?.write(JSON.stringify({ jsonrpc: "2.0", method, params }) + "\n")
  }

  /** Closes the connection unless the daemon answers on it in time. */
  async ping(limitMs: number): Promise<void> {
    const socket = this.socket
    if (!socket) return
    const isAnswered = await within(
      this.call("daemon.ping", {}).then(
        () => true,
        (error: unknown) => error instanceof Refused,
      ),
      limitMs,
    )
    if (!isAnswered && this.socket === socket) this.close()
  }

  close(): void {
    this.drop(new Error("the connection to fallbackd was closed"))
  }

  private open(): Promise<Socket> {
    this.opening ??= new Promise<Socket>((resolve, reject) => {
      const socket = reach(this.path)
      let isLost = false
      const lose = (why: Error) => {
        if (isLost) return // and another one may be open by now
        isLost = true
        this.lost(why)
        reject(why)
        socket.destroy()
      }
      this.drop = lose
      socket.setEncoding("utf8")
      socket.unref() // it keeps no process alive
      socket.once("connect", () => {
        this.socket = socket
        this.opening = undefined
        resolve(socket)
        this.onOpen()
      })
      socket.on("data", (piece: string | Buffer) => this.hear(String(piece)))
      // Where something is still to be written, opencode's runtime reports "end" and never "close".
      for (const event of ["end", "close"]) {
        socket.on(event, () => lose(new Error("the connection to fallbackd was lost")))
      }
      socket.on("error", lose)
    })
    return this.opening
  }

  private hear(piece: string): void {
    const lines = (this.rest + piece).split("\n")
    this.rest = lines.pop() ?? ""
    for (const line of lines) {
      if (line.trim() === "") continue
      let message: Message
      try {
        message = JSON.parse(line)
      } catch {
        continue
      }
      if (typeof message.method === "string") this.onTold(message.method, message.params)
      if (typeof message.id !== "number") continue
      const waiting = this.waiting.get(message.id)
      this.waiting.delete(message.id)
      const problem = message.error
      if (problem) waiting?.reject(new Refused(problem.message ?? "refused", problem.data?.kind))
      else waiting?.resolve(message.result)
    }
  }

  private lost(why: Error): void {
    this.socket = undefined
    this.opening = undefined
    this.rest = ""
    const waiting = [...this.waiting.values()]
    this.waiting.clear()
    for (const one of waiting) one.reject(why)
  }
}

/** The value, or undefined where it has not come in time or has failed. */
export async function within<T>(promise: Promise<T>, limitMs: number): Promise<T | undefined> {
  let timer: ReturnType<typeof setTimeout> | undefined
  const over = new Promise<undefined>((resolve) => {
    timer = setTimeout(() => resolve(undefined), limitMs)
    timer.unref?.() // it keeps no process alive either
  })
  try {
    return await Promise.race([promise.catch(() => undefined), over])
  } finally {
    clearTimeout(timer)
  }
}
