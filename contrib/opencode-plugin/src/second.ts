// The plugin for opencode 2: tells the daemon where the service listens and with which password,
// asks it to which model a message goes, hands on what a provider's answer says of limits, and
// waits for subagents that the daemon moves. It imports nothing of either SDK.
// Written from opencode's documentation and unverified against the program itself.

import { readFileSync } from "node:fs"
import { homedir } from "node:os"
import { join } from "node:path"
import { Moved, type Look } from "./children.ts"
import { Daemon, Refused, socketPath, within } from "./rpc.ts"

const REDIRECT_LIMIT_MS = 400
const STATUS_LIMIT_MS = 5000
const ANNOUNCE_LIMIT_MS = 2000
const LOOK_EVERY_MS = 5000
const PING_LIMIT_MS = 15_000
const COMMAND = "fallback-status"

type Model = { providerID: string; id: string }
type Session = {
  model?: Model
  agent?: string
  parentID?: string
  location?: { directory?: string }
}
type Resolved = { model: string; redirected: boolean }
type Announced = { url: string; protected?: boolean; problem?: string | null }
type Prompt = { readonly sessionID: string }
type Retry = { readonly sessionID: string; readonly model?: Model; decision: { retry: boolean } }
type Response = {
  readonly sessionID: string
  readonly response: { status: number; headers: Iterable<[string, string]> }
}
type ToolEnd = {
  readonly tool: string
  readonly sessionID: string
  readonly metadata?: { sessionID?: string }
  error?: { message: string }
}
type Message = {
  type: string
  finish?: string
  error?: unknown
  content?: { type: string; text?: string }[]
}
type Event = { type: string; data?: { sessionID?: string } }
type Call = { call: number; path: string; body?: unknown }
/** Headers of a provider's answer that say when a limit ends; no other one is handed on. */
const LIMITS = /^(?:retry-after(?:-ms)?|x-should-retry|(?:x-|anthropic-)?ratelimit[\w-]*|x-codex-[\w-]*)$/i
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
    context(input: { sessionID: string }): Promise<{ data?: Message[] } | Message[]>
    interrupt(input: { sessionID: string }): Promise<unknown>
    hook(name: "prompt", callback: (event: Prompt) => Promise<void>): Promise<unknown>
    hook(name: "retry", callback: (event: Retry) => Promise<void>): Promise<unknown>
    hook(name: "http.response", callback: (event: Response) => Promise<void>): Promise<unknown>
  }
  tool: { hook(name: "execute.after", callback: (event: ToolEnd) => Promise<void>): Promise<unknown> }
  event: { subscribe(options: { signal: AbortSignal }): AsyncIterable<Event> }
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
  const daemon = new Daemon(
    socketPath(),
    () => {
      announced = ""
      void announce()
    },
    (method, params) => {
      if (method !== "opencode.call") return
      const { call, path, body } = params as Call
      const isKnown = path === "/fallbackd/child"
      if (isKnown) moved.tell(body as Parameters<Moved["tell"]>[0])
      daemon.tell("opencode.answer", { call, status: isKnown ? 200 : 404, text: "true", more: false })
    },
  )
  const moved = new Moved(look, (sessionID) => ctx.session.interrupt({ sessionID }))
  const budgetMs = ctx.options?.budgetMs ?? REDIRECT_LIMIT_MS

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
      const version = { version: ctx.app?.version ?? "2.0.0" } // it has loaded this entry
      const said = daemon.call<Announced>("opencode.announce", {
        ...service,
        directory,
        plugin: true,
        ...version,
      })
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

  /** Where the daemon sends a model's work now; undefined: it stays. */
  async function next(sessionID: string, model?: Model): Promise<Model | undefined> {
    const service = serviceOf()
    const session = await ctx.session.get({ sessionID })
    const asked = model ?? session.model
    if (!service || !asked) return
    const found = await daemon.call<Resolved>("opencode.resolve", {
      session: sessionID,
      model: `${asked.providerID}/${asked.id}`,
      directory: session.location?.directory ?? directory,
      server: service.url,
      ...(session.agent ? { agent: session.agent } : {}),
    })
    const slash = found.model.indexOf("/")
    if (!found.redirected || slash < 1) return
    return { providerID: found.model.slice(0, slash), id: found.model.slice(slash + 1) }
  }

  await ctx.session.hook("prompt", async ({ sessionID }) => {
    const model = await within(next(sessionID), budgetMs)
    if (model) await ctx.session.switchModel({ sessionID, model })
  })

  // Hooks that a version does not have are left out: the rest works without them.
  const optional = async (hook: () => Promise<unknown>) => {
    try {
      await hook()
    } catch (error) {
      tell(`a hook is not there: ${String(error)}`)
    }
  }

  await optional(() =>
    ctx.session.hook("http.response", async ({ sessionID, response }) => {
      if (response.status < 400) return
      const headers = Object.fromEntries([...response.headers].filter(([name]) => LIMITS.test(name)))
      const properties = { sessionID, status: response.status, headers }
      const event = { type: "fallbackd.response", properties }
      // Answered before opencode goes on, so that the daemon has it when it hears of the failure.
      await within(daemon.call("opencode.event", { event, directory }), budgetMs)
    }),
  )

  // A model that the daemon knows to be out is not tried again: the turn moves at once.
  await optional(() =>
    ctx.session.hook("retry", async (event) => {
      if (!event.decision.retry) return
      if (await within(next(event.sessionID, event.model), budgetMs)) event.decision = { retry: false }
    }),
  )

  await optional(() =>
    ctx.tool.hook("execute.after", async (event) => {
      if (event.tool !== "subagent" || !event.error) return
      const child = event.metadata?.sessionID ?? (await childOf(event.sessionID))
      if (!child || !moved.has(child)) return
      const outcome = await moved.outcome(child, event.sessionID)
      moved.forget(child)
      event.error.message =
        "error" in outcome
          ? outcome.error
          : `The subagent's first model failed, and another one has done the task. Its result:\n${outcome.output}`
    }),
  )

  /** The one subagent of a parent that was moved. */
  async function childOf(parent: string): Promise<string | undefined> {
    const known = await Promise.all(
      moved.names.map(async (sessionID) => {
        const session = await ctx.session.get({ sessionID }).catch(() => undefined)
        return session?.parentID === parent ? sessionID : undefined
      }),
    )
    const found = known.filter((one) => one !== undefined)
    return found.length === 1 ? found[0] : undefined
  }

  async function look(sessionID: string): Promise<Look> {
    const found = await ctx.session.context({ sessionID })
    const last = (Array.isArray(found) ? found : (found.data ?? [])).findLast((one) => one.type === "assistant")
    if (!last) return { isBusy: false }
    if (last.finish !== "stop" || last.error) return { isBusy: !last.finish && !last.error }
    return { isBusy: false, answer: last.content?.findLast((one) => one.type === "text")?.text ?? "" }
  }

  const ending = new AbortController()
  void (async () => {
    for await (const event of ctx.event.subscribe({ signal: ending.signal }))
      if (event.type === "session.execution.interrupted") moved.idle(event.data?.sessionID ?? "")
  })().catch(() => undefined)

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
    ending.abort()
    clearInterval(timer)
    daemon.close()
  }
}

export default { id: "fallbackd", setup }
