// What the daemon needs of an opencode that it cannot call: its events, and calls made from inside.

import type { PluginInput } from "@opencode-ai/plugin"
import type { Daemon } from "./rpc.ts"

const PIECE_CHARS = 512 * 1024 // a line of the daemon holds 4 MiB, and a character up to 6 bytes
const FORWARDED = new Set([
  "message.updated",
  "message.part.updated",
  "message.part.delta",
  "session.status",
  "session.error",
  "session.idle",
  "session.compacted",
  "session.deleted",
])
const MAX_REPLIES = 500

type Call = { call: number; method: string; path: string; directory?: string; body?: unknown }
type Properties = Record<string, any>
export type Event = { id?: string; type: string; properties?: Properties }
type Http = { baseUrl?: string; headers?: unknown; fetch?: (request: Request) => Promise<Response> }

/** Answers a call of the daemon. What begins with `/fallbackd/` is for the plugin itself. */
export async function serve(
  input: PluginInput,
  daemon: Daemon,
  params: unknown,
  own: (path: string, body: unknown) => boolean,
): Promise<void> {
  const { call, method, path, directory, body } = params as Call
  let status = 0
  let text = ""
  if (path.startsWith("/fallbackd/")) {
    status = own(path, body) ? 200 : 404
    text = "true"
  } else {
    try {
      const response = await request(input, method, path, body, directory)
      status = response.status
      text = await response.text()
    } catch (error) {
      status = 0
      text = String(error)
    }
  }
  for (let at = 0; ; at += PIECE_CHARS) {
    const more = at + PIECE_CHARS < text.length
    daemon.tell("opencode.answer", { call, status, text: text.slice(at, at + PIECE_CHARS), more })
    if (!more) return
  }
}

/** Makes one call with the client of the plugin, which needs no port. */
export function request(
  input: PluginInput,
  method: string,
  path: string,
  body?: unknown,
  directory?: string,
): Promise<Response> {
  const http = httpOf(input)
  const url = new URL(path, http.baseUrl ?? "http://localhost:4096")
  url.searchParams.set("directory", directory || input.directory)
  const headers = new Headers(http.headers as HeadersInit)
  headers.delete("x-opencode-directory")
  if (body) headers.set("content-type", "application/json")
  const init = { method, headers, ...(body ? { body: JSON.stringify(body) } : {}) }
  return (http.fetch ?? fetch)(new Request(url, init))
}

/** Its address, headers and `fetch`: without a port, that `fetch` leads straight to the server. */
function httpOf(input: PluginInput): Http {
  const client = input.client as unknown as Record<string, { getConfig?: () => Http } | undefined>
  const found = (client["_client"] ?? client["client"])?.getConfig?.()
  if (!found) throw new Error("this version of opencode gives its plugins another client")
  return found
}

/** Which events go to the daemon, without what people and models write. */
export class Events {
  private readonly answered = new Set<string>()

  forward(daemon: Daemon, event: Event, directory: string): void {
    if (!FORWARDED.has(event.type)) return
    const properties = this.stripped(event)
    if (!properties) return
    const { id, type } = event
    daemon.tell("opencode.event", { event: { id, type, properties }, directory })
  }

  /** Undefined: it says nothing new. */
  private stripped(event: Event): Properties | undefined {
    const properties = event.properties ?? {}
    switch (event.type) {
      case "message.updated":
        return properties["info"]?.role === "assistant" ? properties : undefined
      case "message.part.delta":
        if (!properties["delta"] || !this.isFirst(properties["messageID"])) return
        return { ...properties, delta: "…" }
      case "message.part.updated":
        return this.part(properties)
      default:
        return properties
    }
  }

  private part(properties: Properties): Properties | undefined {
    const part = properties["part"] ?? {}
    const { id, messageID, sessionID, type, tool } = part
    const known = { id, messageID, sessionID, type }
    const session = { sessionID: properties["sessionID"] ?? sessionID }
    switch (type) {
      case "text":
      case "reasoning":
        if (!part.text || !this.isFirst(messageID)) return
        return { ...session, part: { ...known, text: "…" } }
      case "tool":
        return { ...session, part: { ...known, tool, state: { status: part.state?.status } } }
      case "patch":
        return { ...session, part: { ...known, files: (part.files ?? []).map(() => "…") } }
      case "retry":
        return { ...session, part }
      default:
        return
    }
  }

  private isFirst(message: unknown): boolean {
    if (typeof message !== "string" || this.answered.has(message)) return false
    this.answered.add(message)
    if (this.answered.size > MAX_REPLIES) {
      const [oldest] = this.answered
      if (oldest !== undefined) this.answered.delete(oldest)
    }
    return true
  }
}
