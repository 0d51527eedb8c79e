// The conformance suite of MCP, unchanged, against the peer at the given address. Most of its scenarios want a server made for them:
// mcp.yaml lists those that must fail.

import { fileURLToPath } from "node:url";

import { version } from "./parts.mjs";

const suite = "@modelcontextprotocol/conformance";
console.log(suite, version(suite));
process.argv.splice(2, 1, "server", "--url", `http://${process.argv[2]}/mcp`, "--expected-failures", fileURLToPath(new URL("mcp.yaml", import.meta.url)));
await import(`./node_modules/${suite}/dist/index.js`);
