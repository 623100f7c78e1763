// Where this server is reached from its own machine.

const LOOPBACK: Record<string, string> = {
  localhost: "127.0.0.1",
  "0.0.0.0": "127.0.0.1", // it listens everywhere
  "[::]": "[::1]",
}

export function addressOf(url: URL | string): string {
  if (!URL.canParse(String(url))) return String(url)
  const found = new URL(url)
  found.hostname = LOOPBACK[found.hostname] ?? found.hostname
  return found.href.replace(/\/$/, "")
}
