// The plugin: asks the daemon to which model a message goes, lets it follow and change the sessions
// of this opencode, and shows its state. Without a daemon everything is as without the plugin.

import type { Hooks, Plugin, PluginInput, ToolDefinition } from "@opencode-ai/plugin"
import { addressOf } from "./address.ts"
import { Children } from "./children.ts"
import { Events, request, serve, type Event } from "./link.ts"
import { Daemon, Refused, socketPath, within } from "./rpc.ts"

const REDIRECT_LIMIT_MS = 400
const STATUS_LIMIT_MS = 5000
const ANNOUNCE_LIMIT_MS = 2000
const LOOK_EVERY_MS = 5000
const PING_LIMIT_MS = 15_000 // a busy machine is slow
const COMMAND = "fallback-status"
/** Other plugins that send a failed message to another model, by what their names hold. */
const RIVAL = /(model|rate-limit)-fallback/i

type Resolved = { model: string; redirected: boolean; reason?: string | null }
type Status = { text: string }
type Announced = {
  url: string
  via?: "url" | "plugin"
  protected?: boolean
  problem?: string | null
}

/** `budgetMs`: how long a message waits for the daemon's word, at most. */
type Options = { budgetMs?: number }

const plugin: Plugin = async (input, options?: Options) => {
  if (process.env["FALLBACKD_ATTEMPT"]) return {} // a delegation, which the daemon itself moves on
  const budgetMs = options?.budgetMs ?? REDIRECT_LIMIT_MS
  let announcing = false
  let isSettled = false // the daemon has taken this server, or will never
  let isForwarding = false // the daemon cannot call this server: it hears of it from here
  let misses = 0
  const server = addressOf(input.serverUrl)
  const events = new Events()
  const daemon = new Daemon(
    socketPath(),
    () => {
      isForwarding = false
      void announce()
    },
    (method, params) => {
      if (method !== "opencode.call") return
      const path = String((params as { path?: string }).path)
      if (!path.startsWith("/fallbackd/")) isForwarding = true // the others it calls at an address too
      void serve(input, daemon, params, (path, body) => {
        if (path !== "/fallbackd/child") return false
        children.tell(body as Parameters<Children["tell"]>[0])
        return true
      })
    },
  )
  const notices = new Notices(input)
  const send = async (method: string, path: string, body?: unknown) =>
    (await request(input, method, path, body)).json()
  const children = new Children((path) => send("GET", path), send)

  async function announce(): Promise<void> {
    if (announcing) return
    announcing = true
    isSettled = false
    try {
      const password = process.env["OPENCODE_SERVER_PASSWORD"]
      const said = daemon.call<Announced>("opencode.announce", {
        url: server,
        directory: input.directory,
        plugin: true,
        ...(password ? { password } : {}),
      })
      const heard = said.then(
        (found) => {
          isSettled = true
          isForwarding = found.via === "plugin"
          notices.tell(announcedWords(found))
        },
        (error: unknown) => {
          if (!(error instanceof Refused) || error.kind === "draining") return
          isSettled = true
          notices.tell(`fallbackd does not watch this opencode: ${error.message}`)
        },
      )
      await within(heard, ANNOUNCE_LIMIT_MS)
    } finally {
      announcing = false
    }
    misses = daemon.isOpen ? 0 : misses + 1
  }

  // A daemon that comes up later, or comes back, hears of this server without being asked.
  // One that only starts again is back before it is missed twice.
  let isLooking = false
  async function look(): Promise<void> {
    if (isLooking) return
    isLooking = true
    try {
      await daemon.ping(PING_LIMIT_MS)
      if (daemon.isOpen && isSettled) return
      await announce()
      if (misses === 2) notices.tell("fallbackd does not run any more: models are used as they are chosen")
    } finally {
      isLooking = false
    }
  }
  const timer = setInterval(() => void look(), LOOK_EVERY_MS)
  timer.unref?.()
  void announce().then(() => {
    if (misses === 0) return
    misses = 2 // said now, and not again with the next look
    notices.tell("fallbackd is not running: models are used as they are chosen")
  })

  const hooks: Hooks = {
    "chat.message": async (asked, output) => {
      notices.show()
      const model = output.message.model ?? asked.model
      if (!model) return
      const named = `${model.providerID}/${model.modelID}`
      const found = await within(
        daemon.call<Resolved>("opencode.resolve", {
          session: asked.sessionID,
          model: named,
          directory: input.directory,
          server,
          ...(output.message.agent ?? asked.agent
            ? { agent: output.message.agent ?? asked.agent }
            : {}),
        }),
        budgetMs,
      )
      if (!found?.redirected) return
      const slash = found.model.indexOf("/")
      if (slash < 1) return
      output.message.model = {
        ...model,
        providerID: found.model.slice(0, slash),
        modelID: found.model.slice(slash + 1),
      }
    },
    event: async ({ event }) => {
      const seen = event as Event
      if (seen.type === "session.idle") children.idle(seen.properties?.["sessionID"])
      if (isForwarding) events.forward(daemon, event as Event, input.directory)
    },
    "experimental.chat.messages.transform": async (_, output) => {
      await children.replace(output.messages as Parameters<Children["replace"]>[0])
    },
    config: async (config) => {
      const rival = rivalIn(config.plugin)
      if (rival) notices.warn(`${rival} is loaded beside fallbackd: both send a failed message again; remove one of them`)
      config.command ??= {}
      config.command[COMMAND] ??= {
        description: "Which models work, and what this session is on",
        template: `Call the ${COMMAND} tool and display the full output. $ARGUMENTS`,
      }
    },
    tool: { [COMMAND]: await statusTool(daemon, input.directory) },
    dispose: async () => {
      clearInterval(timer)
      daemon.close()
    },
  }
  return hooks
}

function announcedWords(found: Announced): string {
  const way = found.via === "plugin" ? "through its plugin" : `at ${found.url}`
  const does = found.protected === false ? "does not protect" : "protects"
  const problem = found.problem ? `${found.protected === false ? ":" : ", but"} ${found.problem}` : ""
  return `fallbackd ${does} the sessions of this opencode ${way}${problem}`
}

/** An entry is a name, or a name with options. */
function rivalIn(plugins: unknown): string | undefined {
  const entries = Array.isArray(plugins) ? plugins : []
  return entries.flat().find((one): one is string => typeof one === "string" && RIVAL.test(one))
}

async function statusTool(daemon: Daemon, directory: string): Promise<ToolDefinition> {
  const description = "verbose: with the usage of each time in which the session was on one model"
  // Where its code is not installed the tool has no arguments: opencode 1.14 answers no message
  // beside a tool whose argument its own schemas did not make.
  const args = await import("@opencode-ai/plugin").then(
    (found) => ({ verbose: found.tool.schema.boolean().optional().describe(description) }),
    () => ({}),
  )
  const found = {
    description: "Shows which models work, and which model this session is on and why.",
    args,
    async execute(args: { verbose?: boolean }, context: { sessionID: string }): Promise<string> {
      const status = await within(
        daemon.call<Status>("opencode.status", {
          session: context.sessionID,
          directory,
          verbose: args.verbose ?? false,
        }),
        STATUS_LIMIT_MS,
      )
      return status?.text ?? "fallbackd does not answer. Start it: `systemctl --user start fallbackd`"
    },
  }
  return found as unknown as ToolDefinition
}

/**
 * Each notice once, in the interface and in the log of the server. An interface draws itself after
 * its plugins are loaded, so what is said before the first message waits, and the last of it counts.
 */
class Notices {
  private readonly told = new Set<string>()
  private waiting: string | undefined
  private warning: string | undefined
  private isShown = false

  constructor(private readonly input: PluginInput) {}

  tell(message: string): void {
    if (!this.isNews(message, "info")) return
    this.waiting = message
    if (this.isShown) this.show()
  }

  /** A warning is shown beside whatever else is said before the first message. */
  warn(message: string): void {
    if (!this.isNews(message, "warn")) return
    this.warning = message
    if (this.isShown) this.show()
  }

  private isNews(message: string, level: "info" | "warn"): boolean {
    if (this.told.has(message)) return false
    this.told.add(message)
    const line = { service: "fallbackd", level, message }
    void this.input.client.app.log({ body: line }).catch(() => undefined)
    return true
  }

  /** There is somebody to read them. */
  show(): void {
    this.isShown = true
    const message = [this.waiting, this.warning].filter(Boolean).join(". ")
    const variant = this.warning ? ("warning" as const) : ("info" as const)
    this.waiting = this.warning = undefined
    if (!message) return
    const body = { title: "fallbackd", message, variant, duration: 5000 }
    void this.input.client.tui.showToast({ body }).catch(() => undefined)
  }
}

export default plugin
