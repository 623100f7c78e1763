// The plugin for opencode 2: tells the daemon where the service listens and with which password,
// asks it to which model a message goes, and shows its state. It imports nothing of either SDK.
// Written from opencode's documentation and unverified against the program itself.

import { readFileSync } from "node:fs"
import { homedir } from "node:os"
import { join } from "node:path"
import { Daemon, Refused, socketPath, within } from "./rpc.ts"

const REDIRECT_LIMIT_MS = 400
const STATUS_LIMIT_MS = 5000
const ANNOUNCE_LIMIT_MS = 2000
const LOOK_EVERY_MS = 5000
const PING_LIMIT_MS = 15_000
const COMMAND = "fallback-status"

type Model = { providerID: string; id: string; variant?: string }
type Session = { model?: Model; agent?: string; location?: { directory?: string } }
type Resolved = { model: string; redirected: boolean }
type Announced = { url: string; protected?: boolean; problem?: string | null }
type Prompt = { readonly sessionID: string }
type Command = { readonly sessionID: string }
type Commands = {
  add(command: { name: string; description: string; execute(input: Command): Promise<void> }): void
}

/** As much of opencode's context as is used here. */
export type Context = {
  options?: { budgetMs?: number }
  app?: { version?: string }
  location?: { directory?: string }
  session: {
    get(input: { sessionID: string }): Promise<Session>
    switchModel(input: { sessionID: string; model: Model }): Promise<unknown>
    synthetic(input: { sessionID: string; text: string; resume?: boolean }): Promise<unknown>
    hook(name: "prompt", callback: (event: Prompt) => Promise<void>): Promise<unknown>
  }
  command: { transform(change: (commands: Commands) => void): Promise<unknown> }
}

type Service = { url: string; password?: string }

/** Where this process listens, by the file in which the service registers itself. */
export function serviceOf(
  pid: number = process.pid,
  env: NodeJS.ProcessEnv = process.env,
): Service | undefined {
  const state = env["XDG_STATE_HOME"] || join(env["HOME"] || homedir(), ".local", "state")
  try {
    const found = JSON.parse(readFileSync(join(state, "opencode", "service.json"), "utf8"))
    if (found?.pid !== pid || typeof found.url !== "string") return
    return { url: found.url, ...(found.password ? { password: String(found.password) } : {}) }
  } catch {
    return
  }
}

async function setup(ctx: Context): Promise<() => void> {
  if (process.env["FALLBACKD_ATTEMPT"]) return () => undefined // the daemon itself moves these on
  const directory = ctx.location?.directory ?? process.cwd()
  const told = new Set<string>()
  let announced = "" // the address and the password that the daemon has
  let isAnnouncing = false
  const daemon = new Daemon(socketPath(), () => {
    announced = ""
    void announce()
  })

  function tell(message: string): void {
    if (told.has(message)) return
    told.add(message)
    console.log(`fallbackd: ${message}`)
  }

  async function announce(): Promise<void> {
    const service = serviceOf()
    if (!service) {
      tell("this opencode is not the shared service, so its sessions are not followed")
      return
    }
    const now = JSON.stringify(service)
    if (isAnnouncing || now === announced) return
    isAnnouncing = true
    try {
      const version = ctx.app?.version ? { version: ctx.app.version } : {}
      const said = daemon.call<Announced>("opencode.announce", { ...service, directory, ...version })
      const heard = said.then(
        (found) => {
          announced = now
          const problem = found.problem ? `: ${found.problem}` : ""
          const does = found.protected === false ? "does not protect" : "protects"
          tell(`fallbackd ${does} the sessions of this opencode at ${found.url}${problem}`)
        },
        (error: unknown) => {
          if (!(error instanceof Refused) || error.kind === "draining") return
          announced = now
          tell(`fallbackd does not watch this opencode: ${error.message}`)
        },
      )
      await within(heard, ANNOUNCE_LIMIT_MS)
    } finally {
      isAnnouncing = false
    }
  }

  // A daemon that comes back hears of this service again, and of another password.
  const timer = setInterval(() => {
    void daemon.ping(PING_LIMIT_MS).then(() => {
      if (!daemon.isOpen) announced = ""
      return announce()
    })
  }, LOOK_EVERY_MS)
  timer.unref?.()

  await ctx.session.hook("prompt", async (event) => {
    const moved = redirected(event.sessionID).catch(() => undefined)
    await within(moved, ctx.options?.budgetMs ?? REDIRECT_LIMIT_MS)
  })

  async function redirected(sessionID: string): Promise<void> {
    const service = serviceOf()
    const session = await ctx.session.get({ sessionID })
    if (!service || !session.model) return
    const found = await daemon.call<Resolved>("opencode.resolve", {
      session: sessionID,
      model: `${session.model.providerID}/${session.model.id}`,
      directory: session.location?.directory ?? directory,
      server: service.url,
      ...(session.agent ? { agent: session.agent } : {}),
    })
    const slash = found.model.indexOf("/")
    if (!found.redirected || slash < 1) return
    const model = { providerID: found.model.slice(0, slash), id: found.model.slice(slash + 1) }
    await ctx.session.switchModel({ sessionID, model })
  }

  await ctx.command.transform((commands) =>
    commands.add({
      name: COMMAND,
      description: "Which models work, and what this session is on",
      async execute({ sessionID }) {
        const status = await within(
          daemon.call<{ text: string }>("opencode.status", { session: sessionID, directory, verbose: false }),
          STATUS_LIMIT_MS,
        )
        const text = status?.text ?? "fallbackd does not answer. Start it: `systemctl --user start fallbackd`"
        await ctx.session.synthetic({ sessionID, text, resume: false })
      },
    }),
  )
  void announce()
  return () => {
    clearInterval(timer)
    daemon.close()
  }
}

export default { id: "fallbackd", setup }
