// Shows /openapi.json: no library, nothing from elsewhere.  Text goes into the page as text only.
"use strict";

const METHODS = ["get", "put", "post", "delete"];
const STREAM = "text/event-stream";
const EVENTS_SHOWN = 200;
let api;

// Elements

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

// The few marks that descriptions use: `code` and blank lines.
function prose(text) {
  return (text || "").split("\n\n").filter(Boolean).map((paragraph) =>
    element("p", {}, paragraph.split(/(`[^`]+`)/).map((part) =>
      part.startsWith("`") && part.length > 2 ? element("code", {}, part.slice(1, -1)) : part)));
}

function pathParts(path) {
  return path.split(/(\{[^}]+\})/).map((part) =>
    part.startsWith("{") ? element("em", { class: "param" }, part) : part);
}

function folded(title, content) {
  return element("details", { class: "plain" }, element("summary", {}, title), content);
}

function copyable(text) {
  const pre = element("pre", {}, text);
  const button = element("button", { type: "button", onclick: copy }, "Copy");
  async function copy() {
    try {
      await navigator.clipboard.writeText(pre.textContent);
    } catch {
      // A page that is not served securely may not use the clipboard: select, so that one key does.
      getSelection().selectAllChildren(pre);
      button.textContent = "Ctrl+C";
      return;
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1200);
  }
  return { node: element("div", { class: "sample" }, button, pre), set: (next) => { pre.textContent = next; } };
}

// Schemas

function resolve(schema) {
  let found = schema || {};
  while (found.$ref) {
    const target = found.$ref.slice(2).split("/").reduce((value, key) => value[key], api);
    const { $ref, ...rest } = found;
    found = { ...target, ...rest };
  }
  return found;
}

function kindOf(schema) {
  const name = schema.$ref ? schema.$ref.split("/").pop() : "";
  const found = resolve(schema);
  if (found.enum) return found.enum.map((value) => JSON.stringify(value)).join(" | ");
  if ("const" in found) return JSON.stringify(found.const);
  if (found.type === "array") return `[${kindOf(found.items || {})}]`;
  if (name) return name;
  if (found.anyOf) return found.anyOf.map(kindOf).filter((kind, at, all) => all.indexOf(kind) === at).join(" | ");
  return [].concat(found.type || "any").join(" | ");
}

function boundsOf(schema) {
  const found = resolve(schema);
  const bounds = [];
  if (found.minimum !== undefined) bounds.push(`≥ ${found.minimum}`);
  if (found.maximum !== undefined && found.maximum < Number.MAX_SAFE_INTEGER) bounds.push(`≤ ${found.maximum}`);
  if (found.minItems !== undefined) bounds.push(`≥ ${found.minItems} items`);
  if (found.maxItems !== undefined) bounds.push(`≤ ${found.maxItems} items`);
  if (found.maxLength !== undefined) bounds.push(`≤ ${found.maxLength} bytes`);
  if (found.default !== undefined) bounds.push(`default ${JSON.stringify(found.default)}`);
  return bounds.length ? ` · ${bounds.join(" · ")}` : "";
}

// The object a schema is about, if there is one inside lists, maps and alternatives.
function objectIn(schema) {
  const found = resolve(schema);
  if (found.properties) return found;
  if (found.items) return objectIn(found.items);
  if (typeof found.additionalProperties === "object") return objectIn(found.additionalProperties);
  for (const part of found.anyOf || []) {
    const inner = objectIn(part);
    if (inner) return inner;
  }
  return null;
}

function fieldTable(schema, depth) {
  const found = objectIn(schema);
  if (!found) return element("p", { class: "kind" }, kindOf(schema));
  const required = new Set(found.required || []);
  return element("table", {}, element("tbody", {}, Object.entries(found.properties).map(([name, field]) => {
    const inner = depth < 3 && objectIn(field);
    return element("tr", {},
      element("td", {}, element("code", { class: required.has(name) ? "must" : "" }, name)),
      element("td", {},
        element("span", { class: "kind" }, kindOf(field) + boundsOf(field)),
        prose(resolve(field).description && !inner ? resolve(field).description : field.description),
        inner ? folded("fields", element("div", { class: "nest" }, fieldTable(field, depth + 1))) : null));
  })));
}

// JSON with colours, built from parts of its own text.
function coloured(text) {
  const pattern = /("(?:\\.|[^"\\])*")(\s*:)?|\b(?:true|false|null|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\b/g;
  const parts = [];
  let last = 0;
  for (const match of text.matchAll(pattern)) {
    parts.push(text.slice(last, match.index));
    const kind = match[1] ? (match[2] ? "json-key" : "json-text") : "json-other";
    parts.push(element("span", { class: kind }, match[1] || match[0]), match[2] || "");
    last = match.index + match[0].length;
  }
  return [...parts, text.slice(last)];
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

// One endpoint

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

class Operation {
  constructor(method, path, spec) {
    this.method = method;
    this.path = path;
    this.spec = spec;
    this.id = spec.operationId;
    this.inputs = new Map();
    this.words = [method, path, spec.summary, spec.description, this.id].join(" ").toLowerCase();
    this.node = element("details", { class: "op", id: this.id, ontoggle: () => this.fill() },
      element("summary", {},
        element("span", { class: `method ${method}` }, method.toUpperCase()),
        element("span", { class: "path" }, pathParts(path)),
        element("span", { class: "what" }, spec.summary || "")));
    this.link = element("a", { href: `#${this.id}` },
      element("span", { class: `method ${method}` }, method === "delete" ? "DEL" : method.toUpperCase()),
      element("span", { class: "path" }, pathParts(path.replace(/^\/v0/, ""))));
    this.link.title = spec.summary || "";
  }

  get json() {
    const body = this.spec.requestBody;
    return body && body.content["application/json"];
  }

  get streams() {
    const ok = this.spec.responses["200"];
    return Boolean(ok && ok.content && ok.content[STREAM]);
  }

  // curl does not speak WebSocket, and a form is no way to.
  get triable() {
    return !this.spec.responses["101"];
  }

  // Made when it is opened: a page of closed endpoints is light.
  fill() {
    if (this.filled) return;
    this.filled = true;
    const { spec } = this;
    const parts = [...prose(spec.description)];
    if (spec.parameters.length) parts.push(element("h3", {}, "Parameters"), this.parameterTable());
    if (this.json) {
      parts.push(element("h3", {}, spec.requestBody.required ? "Body" : "Body (may be left out)"));
      const others = Object.keys(spec.requestBody.content).filter((kind) => kind !== "application/json");
      parts.push(fieldTable(this.json.schema, 0));
      if (others.length) parts.push(element("p", { class: "quiet" }, `Also taken: ${others.join(", ")}`));
    }
    parts.push(element("h3", {}, "Answers"), this.answers());
    if (this.triable) parts.push(element("h3", {}, "Try it"), this.form());
    this.node.append(element("div", { class: "inside" }, parts));
  }

  parameterTable() {
    return element("table", {}, element("tbody", {}, this.spec.parameters.map((one) => element("tr", {},
      element("td", {}, element("code", { class: one.required ? "must" : "" }, one.name)),
      element("td", {},
        element("span", { class: "kind" }, `${one.in} · ${kindOf(one.schema)}${boundsOf(one.schema)}`),
        prose(one.description))))));
  }

  answers() {
    const all = Object.entries(this.spec.responses).map(([status, given]) => ({ status, response: resolve(given) }));
    const row = ({ status, response }) => {
      const good = status < "400";
      const json = response.content && response.content["application/json"];
      const kinds = Object.keys(response.content || {});
      const cell = element("td", {}, prose(response.description));
      if (good && kinds.length) cell.append(element("p", { class: "kind" }, kinds.join(", ")));
      if (good && json && objectIn(json.schema)) cell.append(folded("fields", element("div", { class: "nest" }, fieldTable(json.schema, 0))));
      if (good && json && json.example) cell.append(folded("example", element("pre", {}, coloured(JSON.stringify(json.example, null, 2)))));
      return element("tr", {}, element("td", {}, element("span", { class: `status ${good ? "good" : "bad"}` }, status)), cell);
    };
    const table = (rows) => element("table", {}, element("tbody", {}, rows.map(row)));
    const refusals = all.filter(({ status }) => status >= "400");
    return element("div", {}, table(all.filter(({ status }) => status < "400")),
      folded(`refusals: ${refusals.map(({ status }) => status).join(", ")}`, table(refusals)));
  }

  form() {
    const fields = this.spec.parameters.map((one) => {
      const schema = resolve(one.schema);
      const input = [].concat(schema.type).includes("boolean")
        ? element("select", {}, ["", "true", "false"].map((value) => element("option", {}, value)))
        : element("input", { placeholder: schema.default ?? "", spellcheck: "false" });
      if (one.required) input.value = one.example ?? "";
      input.addEventListener("input", () => this.refresh());
      this.inputs.set(one, input);
      return element("label", {}, one.name, input);
    });
    const parts = [];
    if (fields.length) parts.push(element("div", { class: "fields" }, fields));
    if (this.json) {
      const examples = Object.entries(this.json.examples || {});
      this.body = element("textarea", { spellcheck: "false", "aria-label": "Body", oninput: () => this.refresh() });
      const tabs = examples.map(([name, example]) => element("button", {
        type: "button",
        onclick: (event) => {
          this.body.value = JSON.stringify(example.value, null, 2);
          for (const tab of tabs) tab.setAttribute("aria-pressed", String(tab === event.currentTarget));
          this.refresh();
        },
      }, name));
      if (examples.length) this.body.value = JSON.stringify(examples[0][1].value, null, 2);
      if (tabs.length > 1) {
        tabs[0].setAttribute("aria-pressed", "true");
        parts.push(element("div", { class: "tabs" }, tabs));
      }
      parts.push(this.body);
    }
    this.curl = copyable("");
    parts.push(this.curl.node);
    this.button = element("button", { type: "submit", class: "main" }, "Send");
    this.note = element("span", { class: "quiet mono" });
    this.output = element("div", { "aria-live": "polite" });
    parts.push(element("div", { class: "row" }, this.button, this.note), this.output);
    this.refresh();
    return element("form", { onsubmit: (event) => { event.preventDefault(); this.send(); } }, parts);
  }

  // What the form says now

  get url() {
    let path = this.path;
    const query = new URLSearchParams();
    for (const [one, input] of this.inputs) {
      const value = input.value;
      if (one.in === "path") path = path.replace(`{${one.name}}`, encodeURIComponent(value));
      else if (one.in === "query" && value !== "") query.set(one.name, value);
    }
    const text = query.toString();
    return text ? `${path}?${text}` : path;
  }

  get headers() {
    const headers = {};
    for (const [one, input] of this.inputs) {
      if (one.in === "header" && input.value !== "") headers[one.name] = input.value;
    }
    if (this.json && this.body && this.body.value.trim()) headers["Content-Type"] = "application/json";
    const key = document.getElementById("key").value;
    if (key) headers.Authorization = `Bearer ${key}`;
    return headers;
  }

  refresh() {
    if (!this.curl) return;
    const flags = this.streams ? "-N" : "-s";
    const lines = [`curl ${flags}${this.method === "get" ? "" : ` -X ${this.method.toUpperCase()}`} ${quoted(location.origin + this.url)}`];
    for (const [name, value] of Object.entries(this.headers)) {
      // The key itself is not for a shell's history.
      lines.push(name === "Authorization" ? '-H "Authorization: Bearer $KEY"' : `-H ${quoted(`${name}: ${value}`)}`);
    }
    if (this.body && this.body.value.trim()) {
      let data = this.body.value.trim();
      try { data = JSON.stringify(JSON.parse(data)); } catch { /* as it is: the server will say */ }
      lines.push(`-d ${quoted(data)}`);
    }
    this.curl.set(lines.join(" \\\n  "));
  }

  async send() {
    if (this.stop) {
      this.stop.abort();
      return;
    }
    this.stop = new AbortController();
    this.button.textContent = "Stop";
    this.output.replaceChildren();
    const started = performance.now();
    try {
      const response = await fetch(this.url, {
        method: this.method.toUpperCase(),
        headers: this.headers,
        body: this.body && this.body.value.trim() ? this.body.value : undefined,
        signal: this.stop.signal,
        cache: "no-store",
      });
      const took = (performance.now() - started).toFixed(1);
      const timing = response.headers.get("server-timing");
      this.note.replaceChildren(
        element("span", { class: `status ${response.ok ? "good" : "bad"}` }, `${response.status} ${response.statusText}`),
        ` in ${took} ms${timing ? ` · server ${timing}` : ""}`);
      if ((response.headers.get("content-type") || "").startsWith(STREAM)) await this.follow(response);
      else this.output.replaceChildren(element("pre", {}, coloured(pretty(await response.text()))));
    } catch (error) {
      if (error.name !== "AbortError") this.note.replaceChildren(element("span", { class: "status bad" }, String(error.message)));
    } finally {
      this.stop = null;
      this.button.textContent = "Send";
    }
  }

  async follow(response) {
    const shown = element("pre", {});
    this.output.replaceChildren(shown);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        shown.append(element("div", {}, coloured(block), "\n\n"));
        while (shown.childElementCount > EVENTS_SHOWN) shown.firstElementChild.remove();
      }
      shown.scrollTop = shown.scrollHeight;
    }
    shown.append(element("div", { class: "quiet" }, "the stream has ended"));
  }
}

// The page

function show() {
  document.getElementById("version").textContent = api.info.version;
  const operations = Object.entries(api.paths).flatMap(([path, methods]) =>
    METHODS.filter((method) => methods[method]).map((method) => new Operation(method, path, methods[method])));
  const groups = api.tags.map(({ name, description }) => {
    const own = operations.filter(({ spec }) => spec.tags.includes(name));
    const section = element("section", {}, element("h2", {}, name), prose(description), own.map(({ node }) => node));
    const title = element("h2", {}, name);
    const list = element("div", {}, title, own.map(({ link }) => link));
    return { own, section, list };
  }).filter(({ own }) => own.length);
  const intro = element("div", {}, prose(api.info.description));
  const none = element("p", { class: "quiet", hidden: true }, "Nothing matches.");
  document.getElementById("main").replaceChildren(intro, none, ...groups.map(({ section }) => section));
  document.getElementById("nav").replaceChildren(...groups.map(({ list }) => list));

  const search = document.getElementById("search");
  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const { own, section, list } of groups) {
      let here = 0;
      for (const operation of own) {
        const hit = words.every((word) => operation.words.includes(word));
        operation.node.hidden = operation.link.hidden = !hit;
        here += hit;
      }
      section.hidden = list.hidden = here === 0;
      found += here;
    }
    none.hidden = found > 0;
    intro.hidden = words.length > 0;
  }

  function open() {
    const wanted = operations.find(({ id }) => `#${id}` === decodeURIComponent(location.hash));
    for (const { link } of operations) link.classList.toggle("here", Boolean(wanted) && link === wanted.link);
    if (!wanted) return;
    wanted.node.open = true;
    wanted.fill();
    wanted.node.scrollIntoView();
  }

  search.addEventListener("input", filter);
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    const first = operations.find(({ node }) => !node.hidden);
    if (first) location.hash = first.id;
    search.blur();
  });
  document.getElementById("key").addEventListener("input", () => operations.forEach((one) => one.refresh()));
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      search.select();
    } else if (event.key === "Escape" && event.target === search) {
      search.value = "";
      filter();
      search.blur();
    }
  });
  addEventListener("hashchange", open);
  filter();
  open();
}

async function start() {
  try {
    const response = await fetch("/openapi.json");
    if (!response.ok) throw new Error(`/openapi.json answered ${response.status}`);
    api = await response.json();
    show();
  } catch (error) {
    document.getElementById("main").replaceChildren(element("p", { class: "status bad" }, String(error.message)));
  }
}

start();
