// The plugin: asks the daemon to which model a message goes, tells it where this server listens,
// and shows its state. Without a daemon everything is as without the plugin.

import type { Hooks, Plugin, PluginInput, ToolDefinition } from "@opencode-ai/plugin"
import { Daemon, socketPath, within } from "./rpc.ts"

const REDIRECT_LIMIT_MS = 50
const STATUS_LIMIT_MS = 5000
const ANNOUNCE_LIMIT_MS = 2000
const ANNOUNCE_EVERY_MS = 5000
const COMMAND = "fallback-status"

type Resolved = { model: string; redirected: boolean; reason?: string | null }
type Status = { text: string }

/** `budgetMs`: how long a message waits for the daemon's word, at most. */
type Options = { budgetMs?: number }

const plugin: Plugin = async (input, options?: Options) => {
  const budgetMs = options?.budgetMs ?? REDIRECT_LIMIT_MS
  let announcing = false
  const daemon = new Daemon(socketPath(), () => void announce())
  const tell = notices(input)

  async function announce(): Promise<boolean> {
    if (announcing) return daemon.isOpen
    announcing = true
    try {
      const password = process.env["OPENCODE_SERVER_PASSWORD"]
      const said = await within(
        daemon.call<object>("opencode.announce", {
          url: String(input.serverUrl).replace(/\/$/, "").replace("//localhost:", "//127.0.0.1:"),
          directory: input.directory,
          ...(password ? { password } : {}),
        }),
        ANNOUNCE_LIMIT_MS,
      )
      return said !== undefined
    } finally {
      announcing = false
    }
  }

  // A daemon that comes up later, or comes back, hears of this server without being asked.
  const timer = setInterval(() => {
    if (!daemon.isOpen) void announce()
  }, ANNOUNCE_EVERY_MS)
  timer.unref?.()
  void announce().then((heard) => {
    if (!heard && !daemon.isOpen) tell("fallbackd is not running: models are used as they are chosen")
  })

  const hooks: Hooks = {
    "chat.message": async (asked, output) => {
      const model = output.message.model ?? asked.model
      if (!model) return
      const named = `${model.providerID}/${model.modelID}`
      const found = await within(
        daemon.call<Resolved>("opencode.resolve", {
          session: asked.sessionID,
          model: named,
          directory: input.directory,
          server: String(input.serverUrl).replace(/\/$/, "").replace("//localhost:", "//127.0.0.1:"),
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
    config: async (config) => {
      config.command ??= {}
      config.command[COMMAND] ??= {
        description: "Which models work, and what this session is on",
        template: `Call the ${COMMAND} tool and display the full output. $ARGUMENTS`,
      }
    },
    tool: { [COMMAND]: await statusTool(daemon) },
    dispose: async () => {
      clearInterval(timer)
      daemon.close()
    },
  }
  return hooks
}

async function statusTool(daemon: Daemon): Promise<ToolDefinition> {
  const description = "verbose: with the usage of each time in which the session was on one model"
  // The types of the plugin package are enough to build this; its code need not be installed.
  const verbose = await import("@opencode-ai/plugin").then(
    (found) => found.tool.schema.boolean().optional().describe(description),
    () => ({ type: "boolean", description }),
  )
  const found = {
    description: "Shows which models work, and which model this session is on and why.",
    args: { verbose },
    async execute(args: { verbose?: boolean }, context: { sessionID: string }): Promise<string> {
      const status = await within(
        daemon.call<Status>("opencode.status", {
          session: context.sessionID,
          verbose: args.verbose ?? false,
        }),
        STATUS_LIMIT_MS,
      )
      return status?.text ?? "fallbackd does not answer. Start it: `systemctl --user start fallbackd`"
    },
  }
  return found as unknown as ToolDefinition
}

/** Each notice once, in the interface and in the log of the server. */
function notices(input: PluginInput): (message: string) => void {
  const told = new Set<string>()
  return (message) => {
    if (told.has(message)) return
    told.add(message)
    const body = { title: "fallbackd", message, variant: "info" as const, duration: 5000 }
    void input.client.tui.showToast({ body }).catch(() => undefined)
    const line = { service: "fallbackd", level: "info" as const, message }
    void input.client.app.log({ body: line }).catch(() => undefined)
  }
}

export default plugin
