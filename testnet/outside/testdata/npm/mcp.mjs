// The conformance suite of MCP, unchanged, whole and for each revision that it knows, against the peer at the given address. Most of its
// scenarios want a server made for them: mcp.yaml lists those that must fail.

import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

import { version } from "./parts.mjs";

const suite = "@modelcontextprotocol/conformance";
const local = (path) => fileURLToPath(new URL(path, import.meta.url));
console.log(suite, version(suite));
for (const [revision, scenarios] of [["2025-03-26", 1], ["2025-06-18", 27], ["2025-11-25", 33], ["2026-07-28", 40]]) {
  const played = spawnSync(process.execPath, [
    local(`node_modules/${suite}/dist/index.js`), "server", "--url", `http://${process.argv[2]}/mcp`, "--suite", "all",
    "--spec-version", revision, "--expected-failures", local("mcp.yaml"),
  ], { encoding: "utf8" });
  const all = [...played.stdout.matchAll(/^[✓✗] /gm)].length;
  const failed = new Set([...played.stdout.matchAll(/^  ~ ([^:\s]+)/gm)].map((m) => m[1])).size;
  console.log(`${revision}: ${all - failed} of ${all} scenarios pass`);
  if (played.status !== 0 || all !== scenarios) {
    console.log(played.stdout, played.stderr);
    process.exit(1);
  }
}
