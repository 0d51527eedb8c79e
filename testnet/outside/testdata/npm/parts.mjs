// What the clients of npm share.

import { readFileSync } from "node:fs";

const patience = 60_000; // ms, bounds each part; a passing test does not depend on it

export async function play(...parts) {
  for (const part of parts) {
    const late = setTimeout(() => {
      console.error("no end of", part.name);
      process.exit(1);
    }, patience);
    await part();
    clearTimeout(late);
    console.log("ok", part.name);
  }
}

// version is the one of an installed package.
export function version(name) {
  return JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;
}
