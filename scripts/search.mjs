// Asks the site's own search, outside of a browser: node search.mjs SITE QUERY…
// Prints, for each query, the addresses of the pages that it lists, the best first, as JSON.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";

const [site, ...queries] = process.argv.slice(2);
const workers = join(site, "assets/javascripts/workers");
const worker = readdirSync(workers).find((name) => name.startsWith("search."));
const index = JSON.parse(readFileSync(join(site, "search.json"), "utf8"));
const received = [];
globalThis.self = { postMessage: (message) => received.push(message) };
(0, eval)(readFileSync(join(workers, worker), "utf8"));

const send = async (type, data) => {
  received.length = 0;
  self.onmessage({ data: structuredClone({ type, data }) });
  while (!received.length) await new Promise((resolve) => setTimeout(resolve, 1));
  return received[0];
};
await send(0, index);
const filter = {
  input: { type: "operator", data: { operator: "and", operands: [] } },
  aggregation: { input: [{ type: "term", data: { field: "tags" } }] },
};
const found = {};
for (const input of queries) {
  const { data } = await send(2, { input, filter });
  found[input] = data.items.map(({ id }) => index.items[id].location);
}
console.log(JSON.stringify(found));
