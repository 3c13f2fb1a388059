// Looks at the built site: screenshots, broken code in tables, pages wider than a phone, search, axe-core.
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { extname, join, normalize } from "node:path";
import puppeteer from "puppeteer-core";

const [site, folder, executablePath, ...only] = process.argv.slice(2);
const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const TYPES = { ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json", ".svg": "image/svg+xml" };
const PICTURES = ["", "how-to/contexts/", "reference/api/", "reference/api/memory/", "reference/settings/", "why/comparison/"];
const PAGES = [
  ...PICTURES, "start/tutorial/", "start/chat/", "why/context/", "why/promises/", "why/scale/", "reference/chat/", "reference/safety/",
  "reference/api/contexts/", "reference/api/sync/", "how-to/strategies/", "how-to/benchmarks/", "decisions/", "how-to/chat/",
];
const LOOKS = [
  { name: "light", scheme: "light", width: 1280 },
  { name: "dark", scheme: "dark", width: 1280 },
  { name: "phone", scheme: "light", width: 390 },
  { name: "phone-dark", scheme: "dark", width: 390 },
];

const server = createServer(async (request, response) => {
  let path = normalize(decodeURIComponent(new URL(request.url, "http://localhost").pathname));
  if (path.endsWith("/")) path += "index.html";
  try {
    const body = await readFile(join(site, path));
    response.writeHead(200, { "content-type": TYPES[extname(path)] ?? "application/octet-stream" });
    response.end(body);
  } catch {
    response.writeHead(404).end();
  }
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const address = `http://127.0.0.1:${server.address().port}/`;
const args = ["--no-sandbox", "--hide-scrollbars", "--disable-gpu"];
const browser = await puppeteer.launch({ executablePath, args, timeout: 600_000, protocolTimeout: 600_000 });
let faults = 0;
const complain = (fault) => {
  faults += 1;
  console.log(fault);
};

// Code in a table cell may not break inside a word; a page may not be wider than its window.
const measure = () => {
  const broken = [...document.querySelectorAll("td code, th code")]
    .filter((code) => /^[\w.:]+$/.test(code.textContent.trim()) && code.getClientRects().length > 1)
    .map((code) => code.textContent);
  const wide = document.scrollingElement.scrollWidth > window.innerWidth + 1;
  return { broken, wide };
};

for (const look of LOOKS.filter(({ name }) => !only.length || only.includes(name))) {
  const visitor = await browser.createBrowserContext(); // the site remembers colors
  const page = await visitor.newPage();
  page.setDefaultTimeout(600_000);
  await page.setViewport({ width: look.width, height: 900 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: look.scheme }]);
  page.on("pageerror", (error) => complain(`${page.url()}: ${error.message}`));
  for (const path of PAGES) {
    await page.goto(address + path, { waitUntil: "load" });
    const { broken, wide } = await page.evaluate(measure);
    if (broken.length) complain(`${look.name} /${path}: code breaks in a table: ${broken.join(", ")}`);
    if (wide) complain(`${look.name} /${path}: wider than the window`);
    if (PICTURES.includes(path)) {
      const name = path.replaceAll("/", "-").replace(/-$/, "") || "home";
      await page.screenshot({ path: join(folder, `${name}-${look.name}.png`) });
    }
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => axe.run(document));
    for (const { id, nodes } of violations) {
      const [{ html, failureSummary }] = nodes;
      complain(`${look.name} /${path}: ${id} (${nodes.length}): ${html.slice(0, 160)}\n  ${failureSummary}`);
    }
  }
  await visitor.close();
}
await browser.close();
server.close();
console.log(`${PAGES.length} pages, ${faults} faults; screenshots in ${folder}`);
process.exitCode = faults ? 1 : 0;
