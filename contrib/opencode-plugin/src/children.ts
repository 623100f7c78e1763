// Subagents whose model failed. opencode gives their parent an error as soon as they are stopped;
// before the parent's model is asked again, that error is replaced: by the answer of the next
// model, which is waited for, or by the reason.

const LOOK_MS = 250
const SETTLE_MS = 60_000 // of a subagent at rest, until the daemon has moved it or has failed

type Told = { session: string; state: "moving" | "failed"; text?: string }
type Part = { type: string; tool?: string; sessionID: string; messageID: string; id: string; state?: any }
type Message = { info: { sessionID?: string }; parts: Part[] }
type Outcome = { output: string } | { error: string }
type Get = (path: string) => Promise<any>
/** A subagent now. Without `answer` its last message is not a whole one. */
export type Look = { isBusy: boolean; answer?: string | undefined }

/** Waits for the next model of subagents that the daemon moves. */
export class Moved {
  private readonly told = new Map<string, Told>()
  private readonly stopped = new Set<string>() // parents, by the user
  private readonly waiting = new Set<string>()

  constructor(
    private readonly look: (child: string) => Promise<Look>,
    private readonly stop: (child: string) => Promise<unknown>,
  ) {}

  /** By the daemon, before it stops a subagent. */
  tell(told: Told): void {
    this.told.set(told.session, told)
  }

  has(child: string): boolean {
    return this.told.has(child)
  }

  get names(): string[] {
    return [...this.told.keys()]
  }

  forget(child: string): void {
    this.told.delete(child)
  }

  /** A parent is idle: its subagents are not waited for any more. */
  idle(session: string): void {
    if (this.waiting.has(session)) this.stopped.add(session)
  }

  async outcome(child: string, parent: string): Promise<Outcome> {
    this.waiting.add(parent)
    this.stopped.delete(parent)
    try {
      for (let restedMs = 0; restedMs < SETTLE_MS; ) {
        const told = this.told.get(child)
        if (told?.state === "failed") return { error: `Subagent failed: ${told.text ?? ""}` }
        if (this.stopped.has(parent)) {
          await this.stop(child).catch(() => undefined)
          return { error: "Tool execution aborted" }
        }
        const now = await this.look(child).catch((): Look => ({ isBusy: false }))
        if (now.isBusy) restedMs = 0
        else {
          if (now.answer !== undefined) return { output: now.answer }
          restedMs += LOOK_MS
        }
        await new Promise((resolve) => setTimeout(resolve, LOOK_MS))
      }
      return { error: "Subagent failed: no other model has taken its work" }
    } finally {
      this.waiting.delete(parent)
    }
  }
}

/** Puts the outcome of subagents into what opencode 1 sends to the models of their parents. */
export class Children extends Moved {
  private readonly done = new Map<string, Outcome>()

  constructor(
    get: Get,
    private readonly send: (method: string, path: string, body?: unknown) => Promise<any>,
  ) {
    super(
      async (child) => {
        const states = await get("/session/status").catch(() => ({}))
        return states?.[child] ? { isBusy: true } : { isBusy: false, answer: await answerOf(get, child) }
      },
      (child) => send("POST", `/session/${child}/abort`),
    )
  }

  override tell(told: Told): void {
    super.tell(told)
    this.done.delete(told.session)
  }

  async replace(messages: Message[]): Promise<void> {
    if (this.names.length === 0) return
    const parts = messages.flatMap((one) => one.parts)
    await Promise.all(
      parts.map(async (part) => {
        const child = part.state?.metadata?.sessionId
        if (part.tool !== "task" || part.state?.status !== "error" || !this.has(child)) return
        const outcome = this.done.get(child) ?? (await this.outcome(child, part.sessionID))
        this.done.set(child, outcome)
        apply(part, child, outcome)
        const path = `/session/${part.sessionID}/message/${part.messageID}/part/${part.id}`
        await this.send("PATCH", path, part).catch(() => undefined)
      }),
    )
  }
}

/** Undefined: its last message is not a whole answer. */
async function answerOf(get: Get, child: string): Promise<string | undefined> {
  const messages = await get(`/session/${child}/message`).catch(() => [])
  const last = messages?.at?.(-1)
  const isWhole = last?.info?.role === "assistant" && last.info.finish && !last.info.error
  if (!isWhole || ["tool-calls", "unknown"].includes(last.info.finish)) return
  return last.parts.findLast((one: { type: string }) => one.type === "text")?.text ?? ""
}

function apply(part: Part, child: string, outcome: Outcome): void {
  if ("error" in outcome) {
    part.state = { ...part.state, error: outcome.error }
    return
  }
  const { error: _, ...state } = part.state
  const output = `<task id="${child}" state="completed">\n<task_result>\n${outcome.output}\n</task_result>\n</task>`
  const title = state.input?.description ?? "task"
  part.state = { ...state, status: "completed", output, title, metadata: state.metadata ?? {} }
}
