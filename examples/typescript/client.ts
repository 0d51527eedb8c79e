// A program with a client that a generator wrote from a peer's /openapi.json: openapi-typescript makes blackholed.d.ts, and
// openapi-fetch sends the requests. The compiler checks every path, field and answer.
//
//   npx openapi-typescript http://127.0.0.1:8500/openapi.json --default-non-nullable false -o blackholed.d.ts && npx tsc && node out/client.js http://127.0.0.1:8500
import createClient from "openapi-fetch";
import type { components, paths } from "./blackholed.js";

const peer = createClient<paths>({ baseUrl: process.argv[2] ?? "http://127.0.0.1:8500" });

// must returns the data of an answer, or ends the program with the peer's error.
function must<T>({ data, error }: { data?: T; error?: components["schemas"]["Error"] }): T {
  if (error) throw new Error(`${error.error}: ${error.message} (${error.field ?? "no field"})`);
  return data as T;
}

// An instance of a service, its heartbeat, and everybody's list.
const registered = must(await peer.POST("/v1/services/{service}/instances", {
  params: { path: { service: "mail" } },
  body: { id: "mail-1", host: "10.0.0.9", port: 25, tags: ["eu", "smtp"] },
}));
const renewed = must(await peer.PUT("/v1/leases/{lease}/renew", { params: { path: { lease: registered.lease_id } } }));
const found = must(await peer.GET("/v1/services/{service}/instances", {
  params: { path: { service: "mail" }, query: { tags: ["eu", "smtp"] } },
}));
console.log(`instance ${found.instances.map((i) => `${i.id} ${i.host}:${i.port}`)}, renewed for ${renewed.ttl} s`);

// An offer, and a search by place and field.
must(await peer.POST("/v1/discovery/records", {
  body: {
    id: "gpu-1", metadata: { type: "compute", subtype: "gpu" },
    capabilities: { compute: { cpu_cores: 8, memory_mb: 64000, gpus: [{ model: "L40S", memory_mb: 48000 }] } },
    location: { latitude: 52.5, longitude: 13.4, country: "DE" }, health: { status: "HEALTHY" },
  },
}));
const offers = must(await peer.POST("/v1/discovery/query", {
  body: { type: "compute", near: { latitude: 53.5, longitude: 10 }, where: [{ field: "compute.gpus.model", op: "any", values: ["L40S"] }] },
}));
console.log(`offer ${offers.results.map((r) => `${r.record.id} at ${Math.round(r.distance_km ?? NaN)} km`)}`);

// A lock with its fencing token; another lease is refused meanwhile.
const name = { path: { name: "backups/every night" } };
const mine = must(await peer.POST("/v1/coordination/leases", { body: { ttl: 30 } })).id;
const held = must(await peer.POST("/v1/coordination/locks/{name}", { params: name, body: { lease_id: mine } }));
const theirs = must(await peer.POST("/v1/coordination/leases", { body: { ttl: 30 } })).id;
const refused = must(await peer.POST("/v1/coordination/locks/{name}", { params: name, body: { lease_id: theirs, timeout_ms: 0 } }));
console.log(`lock ${held.acquired}, other ${refused.acquired}, token above 0: ${Number(held.fencing_token) > 0}`);

// An error has a kind and names the field.
const wrong = await peer.POST("/v1/services/{service}/instances", { params: { path: { service: "mail" } }, body: { host: "", port: 25 } });
console.log(`error ${wrong.response.status} ${wrong.error?.error} ${wrong.error?.field}`);
