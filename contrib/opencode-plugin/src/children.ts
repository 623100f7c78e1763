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

export class Children {
  private readonly told = new Map<string, Told>()
  private readonly done = new Map<string, Outcome>()
  private readonly stopped = new Set<string>() // parents, by the user

  constructor(
    private readonly get: Get,
    private readonly send: (method: string, path: string, body?: unknown) => Promise<any>,
  ) {}

  /** By the daemon, before it stops a subagent. */
  tell(told: Told): void {
    this.told.set(told.session, told)
    this.done.delete(told.session)
  }

  /** A parent is idle: nobody waits for its subagents any more. */
  idle(session: string): void {
    if (this.waiting.has(session)) this.stopped.add(session)
  }

  private readonly waiting = new Set<string>()

  async replace(messages: Message[]): Promise<void> {
    if (this.told.size === 0) return
    const parts = messages.flatMap((one) => one.parts)
    await Promise.all(
      parts.map(async (part) => {
        const child = part.state?.metadata?.sessionId
        if (part.tool !== "task" || part.state?.status !== "error" || !this.told.has(child)) return
        const outcome = this.done.get(child) ?? (await this.outcome(child, part.sessionID))
        this.done.set(child, outcome)
        apply(part, child, outcome)
        const path = `/session/${part.sessionID}/message/${part.messageID}/part/${part.id}`
        await this.send("PATCH", path, part).catch(() => undefined)
      }),
    )
  }

  private async outcome(child: string, parent: string): Promise<Outcome> {
    this.waiting.add(parent)
    this.stopped.delete(parent)
    try {
      for (let restedMs = 0; restedMs < SETTLE_MS; ) {
        const told = this.told.get(child)
        if (told?.state === "failed") return { error: `Subagent failed: ${told.text ?? ""}` }
        if (this.stopped.has(parent)) {
          await this.send("POST", `/session/${child}/abort`).catch(() => undefined)
          return { error: "Tool execution aborted" }
        }
        const states = await this.get("/session/status").catch(() => ({}))
        if (states?.[child]) restedMs = 0
        else {
          const answer = await this.answer(child)
          if (answer !== undefined) return { output: answer }
          restedMs += LOOK_MS
        }
        await new Promise((resolve) => setTimeout(resolve, LOOK_MS))
      }
      return { error: "Subagent failed: no other model has taken its work" }
    } finally {
      this.waiting.delete(parent)
    }
  }

  /** Undefined: its last message is not a whole answer. */
  private async answer(child: string): Promise<string | undefined> {
    const messages = await this.get(`/session/${child}/message`).catch(() => [])
    const last = messages?.at?.(-1)
    const isWhole = last?.info?.role === "assistant" && last.info.finish && !last.info.error
    if (!isWhole || ["tool-calls", "unknown"].includes(last.info.finish)) return
    return last.parts.findLast((one: { type: string }) => one.type === "text")?.text ?? ""
  }
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
