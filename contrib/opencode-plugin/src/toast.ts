// The plugin for the interface of opencode 2: shows what the daemon says of the session on the screen.
// Its server has nothing that shows a notice. Written from opencode's documentation and unverified
// against the program itself; it imports nothing of either SDK.

import { Daemon, socketPath, within } from "./rpc.ts"

const LOOK_EVERY_MS = 5000
const PING_LIMIT_MS = 15_000
const SUBSCRIBE_LIMIT_MS = 2000
const SHOWN: Record<string, [title: string, variant: string, duration: number]> = {
  fallback: ["Model fallback", "warning", 6000],
  recovered: ["Model recovered", "info", 5000],
  outage: ["No model available", "error", 10_000],
  failed: ["Model fallback failed", "error", 15_000],
}

type Notice = { kind?: string; session?: string; notice?: string; text?: string }
type Route = { sessionID?: string } | undefined

/** As much of the interface as is used here. */
export type Context = {
  ui: {
    toast: { show(toast: { title: string; message: string; variant: string; duration: number }): void }
    router?: { current(): Route }
  }
}

function setup(context: Context): () => void {
  const daemon = new Daemon(
    socketPath(),
    () => void subscribe(),
    (method, params) => {
      if (method === "event") show(params as Notice)
    },
  )
  let isSubscribed = false

  async function subscribe(): Promise<void> {
    const asked = daemon.call("events.subscribe", { kinds: ["session.notice"] })
    isSubscribed = (await within(asked, SUBSCRIBE_LIMIT_MS)) !== undefined
  }

  function show({ kind, session, notice, text }: Notice): void {
    const [title, variant, duration] = SHOWN[notice ?? ""] ?? []
    if (kind !== "session.notice" || !title || !variant || !duration || !text) return
    if (context.ui.router?.current()?.sessionID !== session) return // another one is on the screen
    context.ui.toast.show({ title, message: text, variant, duration })
  }

  const timer = setInterval(() => {
    void daemon.ping(PING_LIMIT_MS).then(() => (daemon.isOpen && isSubscribed ? undefined : subscribe()))
  }, LOOK_EVERY_MS)
  timer.unref?.()
  void daemon.call("daemon.ping", {}).catch(() => undefined)
  return () => {
    clearInterval(timer)
    daemon.close()
  }
}

export default { id: "fallbackd-toast", setup }
