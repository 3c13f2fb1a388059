// Lists and calls everything of the MCP server with the TypeScript SDK, which checks results
// against the schemas that the server declares. `scripts/mcp_client` runs it.
import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [program, store, address, key] = process.argv.slice(2);
const TOOLS = ["search_memory", "read_session", "remember", "list_facts", "forget_fact"];

async function useAll(name, transport) {
  const client = new Client({ name: "typescript-sdk", version: "1" });
  await client.connect(transport);
  const { tools } = await client.listTools();
  assert.deepEqual(tools.map((tool) => tool.name), TOOLS);
  const call = async (tool, given) => {
    const result = await client.callTool({ name: tool, arguments: given });
    assert.ok(!result.isError, JSON.stringify(result));
    return result.structuredContent;
  };
  const { messages } = await call("search_memory", { query: "allergic" });
  assert.match(messages[0].quote, /> I am allergic to hazelnuts\./);
  const read = await call("read_session", { session: messages[0].session, around: 1, limit: 2 });
  assert.equal(read.messages.length, 2);
  const noted = await call("remember", { text: `Uses ${name}.` });
  assert.equal(noted.state, "quarantined");
  assert.equal((await call("list_facts", {})).unconfirmed, 1);
  assert.equal((await call("forget_fact", { key: noted.key })).forgotten, 1);
  const wrong = await client.callTool({ name: "search_memory", arguments: { owner: "bob" } });
  assert.ok(wrong.isError);
  const { resources } = await client.listResources();
  const { resourceTemplates } = await client.listResourceTemplates();
  assert.equal(resourceTemplates[0].uriTemplate, "keepthread://sessions/{id}");
  for (const uri of [resources[0].uri, messages[0].session]) {
    const { contents } = await client.readResource({ uri });
    assert.match(contents[0].text, /hazelnuts/);
  }
  const { prompts } = await client.listPrompts();
  const prompt = await client.getPrompt({ name: prompts[0].name, arguments: { topic: "nuts" } });
  assert.equal(prompt.messages.length, 1);
  await client.close();
  console.log(`${name}: ${tools.length} tools, 2 resources and the prompt answer as declared`);
}

await useAll(
  "stdio",
  new StdioClientTransport({ command: program, args: ["mcp", "--store", store, "--allow-forget"] }),
);
await useAll(
  "http",
  new StreamableHTTPClientTransport(new URL(`${address}/mcp`), {
    requestInit: { headers: { Authorization: `Bearer ${key}` } },
  }),
);
const stranger = new Client({ name: "typescript-sdk", version: "1" });
await assert.rejects(
  stranger.connect(new StreamableHTTPClientTransport(new URL(`${address}/mcp`))),
  /Unauthorized|401/,
);
console.log("http: refused without a key");
