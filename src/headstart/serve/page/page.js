"use strict";
// The page of `headstart serve`: nothing leaves for elsewhere, and what is typed goes to this server alone.

const $ = (id) => document.getElementById(id);
const percent = (share) => (share > 0.999 && share < 1 ? "> 99.9 %" : `${(100 * share).toFixed(1)} %`);
const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const USUAL = ["text", "review", "sentence", "content", "body", "document", "comment", "message", "tweet"];
const CHUNK = 64;
let about = null;

class Told extends Error {
  constructor(status, detail, after) { super(detail); this.status = status; this.after = after; }
}

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const key = sessionStorage.getItem("key");
  if (key) headers.Authorization = `Bearer ${key}`;
  const options = body ? { method: "POST", body: JSON.stringify(body), headers, signal } : { headers, signal };
  let reply;
  try {
    reply = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Told(0, "The server does not answer.");
  }
  if (reply.ok) return reply;
  const told = await reply.json().catch(() => ({ detail: `The server said ${reply.status}.` }));
  if (reply.status === 401) { $("key-form").hidden = false; $("key").focus(); }
  throw new Told(reply.status, told.detail, Number(reply.headers.get("Retry-After") || 1));
}

const wait = (ms, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, ms);
  signal?.addEventListener("abort", () => { clearTimeout(timer); reject(new DOMException("", "AbortError")); });
});

/** What is typed, answered once the typing pauses; an answer to an older text is never shown. */
function following(box, answer) {
  let running = null;
  const again = async (delay = 250) => {
    running?.abort();
    const own = (running = new AbortController());
    try {
      await wait(delay, own.signal);
      await answer(box.value, own.signal);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  };
  box.addEventListener("input", () => again());
  return again;
}

function bars(list, rows) {
  list.replaceChildren(...rows.map(([name, share, figure]) => {
    const fill = make("span");
    fill.style.width = `${Math.max(0, Math.min(100, 100 * share))}%`;
    return make("li", {}, make("span", {}, name), make("span", { class: "bar", "aria-hidden": "true" }, fill),
      make("span", { class: "figure" }, figure));
  }));
}

// a text and its label

/** What is asked: a text, and the second one where the model reads pairs. */
const asked = (text) => (about.task.pair ? { text, pair: $("second").value } : { text });

/** The answer in words, by its kind, and the bars below it. */
const KINDS = {
  classes: (found) => {
    const likeliest = Object.entries(found.probabilities).sort((a, b) => b[1] - a[1])[0][0];
    bars($("shares"), Object.entries(found.probabilities).map(([name, share]) => [name, share, percent(share)]));
    return { label: likeliest, words: found.abstained
      ? `Left open: ${likeliest} would be ${percent(found.probability)}` : `${found.label}, ${percent(found.probability)}` };
  },
  labels: (found) => {
    const rows = Object.entries(found.probabilities);
    bars($("shares"), rows.map(([name, share]) => [name, share,
      `${percent(share)}${found.labels.includes(name) ? " ✓" : ""} (from ${percent(about.task.thresholds[name])})`]));
    return { label: rows.sort((a, b) => b[1] - a[1])[0][0], words: found.labels.join(", ") || "None of its labels" };
  },
  rating: (found) => {
    const { lowest, highest } = about.task;
    bars($("shares"), [[`${lowest} to ${highest}`, (found.value - lowest) / (highest - lowest), found.value.toFixed(2)]]);
    return { label: "rating", words: found.value.toFixed(2) };
  },
};

async function classify(text, signal) {
  const answer = $("answer");
  if (!text.trim() || (about.task.pair && !$("second").value.trim())) {
    answer.className = "answer plain";
    answer.textContent = "Nothing typed yet.";
    $("remark").hidden = $("why").hidden = true;
    $("shares").replaceChildren();
    return;
  }
  try {
    const wanted = $("precision").value;
    const body = wanted ? { ...asked(text), abstain: Number(wanted) } : asked(text);
    const found = (await (await ask("predict", body, signal)).json()).predictions[0];
    const { label, words } = KINDS[about.task.kind](found);
    answer.className = "answer";
    answer.textContent = words;
    $("remark").hidden = !found.truncated;
    $("remark").className = "remark strong";
    $("remark").textContent = found.truncated ? `Only the beginning was read: the model reads ${about.context} tokens.` : "";
    const why = await (await ask("explain", { ...asked(text), label }, signal)).json();
    explain(why);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    answer.className = "answer plain bad";
    answer.textContent = error.message;
    $("why").hidden = true;
  }
}

function explain(why) {
  const words = why.words.filter((word) => word.text);
  const heaviest = Math.max(...words.map((word) => Math.abs(word.weight)), 1e-12);
  const shown = words.slice(0, 600).map((word) => {
    const share = Math.abs(word.weight) / heaviest;
    if (share < 0.15) return [make("span", {}, word.text), " "];
    const side = word.weight > 0 ? "for" : "against";
    const strong = share > 0.5 ? " strong" : "";
    return [make("span", { class: side + strong }, word.text, make("sup", {}, word.weight > 0 ? "+" : "−")), " "];
  });
  $("words").replaceChildren(...shown.flat(), words.length > 600 ? `… and ${words.length - 600} more words` : "");
  $("why-title").textContent = `Words that pushed “${why.label}”`;
  const strongest = [...words].sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight)).slice(0, 5);
  $("strongest").tBodies[0].replaceChildren(...strongest.map((word) => make("tr", {},
    make("th", { scope: "row" }, word.text), make("td", {}, word.weight > 0 ? `for ${why.label}` : `against ${why.label}`),
    make("td", { class: "number" }, `${word.weight > 0 ? "+" : "−"}${Math.abs(word.weight).toFixed(2)}`))));
  $("why").hidden = false;
}

// a file of texts

// A first line by which Excel is told the separator; it is no row.
const TOLD = /^[\r\n]*("?)sep=([,;\t])\1(?:\r?\n|$)/i;

// As the command line finds it: commas, unless the header has none outside quotes but semicolons, or else tabs.
function separatorOf(content) {
  const found = new Set();
  let quoted = false, starts = true;
  for (let place = Math.max(content.search(/[^\r\n]/), 0); place < content.length; place += 1) {
    const letter = content[place];
    if (quoted) {
      if (letter === '"' && content[place + 1] === '"') place += 1;
      else quoted = letter !== '"';
    } else if (letter === '"' && starts) { quoted = true; starts = false; }
    else if (letter === "," || letter === "\n" || letter === "\r") {
      if (letter === ",") return ",";
      break;
    } else {
      starts = letter === ";" || letter === "\t";
      if (starts) found.add(letter);
    }
  }
  return (!quoted && [";", "\t"].find((one) => found.has(one))) || ",";
}

function parse(content, split) {
  const rows = [];
  let row = [], cell = "", quoted = false, place = 0, wasQuoted = false;
  const endRow = () => {
    row.push(cell);
    if (row.length > 1 || row[0] !== "" || wasQuoted) rows.push(row);
    row = []; cell = ""; wasQuoted = false;
  };
  while (place < content.length) {
    const letter = content[place];
    if (quoted) {
      const end = content.indexOf('"', place);
      if (end < 0) throw new Error(`Row ${rows.length} opens a quotation mark that does not end.`);
      cell += content.slice(place, end);
      if (content[end + 1] === '"') { cell += '"'; place = end + 2; } else { quoted = false; place = end + 1; }
    } else if (letter === '"' && cell === "") { quoted = wasQuoted = true; place += 1; }
    else if (letter === split) { row.push(cell); cell = ""; place += 1; }
    else if (letter === "\n" || letter === "\r") {
      endRow();
      place += letter === "\r" && content[place + 1] === "\n" ? 2 : 1;
    } else { cell += letter; place += 1; }
  }
  if (cell !== "" || row.length || wasQuoted) endRow();
  const [header, ...rest] = rows;
  if (!header || !rest.length) throw new Error("The file has no rows below its header.");
  const odd = rest.findIndex((one) => one.length !== header.length);
  if (odd >= 0) throw new Error(`Row ${odd + 1} has ${count(rest[odd].length, "cell")}, the header has ${header.length}.`);
  return { header, rows: rest };
}

const written = (cells, split) => cells.map((cell) => (/[",;\t\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell)).join(split);

function freeName(name, taken) {
  while (taken.includes(name)) name = `predicted_${name}`;
  return name;
}

let table = null, stopping = null, made = null;

function fileSays(words, bad = false) {
  $("file-status").textContent = words;
  $("file-status").className = bad ? "bad" : "";
}

async function choose(file) {
  stopping?.abort();
  table = null;
  $("columns").hidden = $("download").hidden = $("progress").hidden = true;
  $("counts").replaceChildren();
  if (!file) return;
  fileSays(`Reading ${file.name}…`);
  try {
    const bytes = new Uint8Array(await file.arrayBuffer());
    const content = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    const isTsv = /\.tsv$/i.test(file.name), told = isTsv ? null : TOLD.exec(content);
    const rest = told ? content.slice(told[0].length) : content, split = isTsv ? "\t" : told ? told[2] : separatorOf(content);
    // a .csv is written as it came: spreadsheets know UTF-8 by the mark, and open one kind of separator
    const mark = bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf ? "\ufeff" : "";
    const layout = isTsv ? { split: ",", mark: "" } : { split, mark: mark + (told ? `sep=${split}\n` : "") };
    table = { name: file.name, layout, ...parse(rest, split) };
  } catch (error) {
    fileSays(error instanceof TypeError ? `${file.name} is not UTF-8 text; save it as CSV in UTF-8.` : error.message, true);
    return;
  }
  const usual = table.header.findIndex((name) => USUAL.includes(name.trim().toLowerCase()));
  for (const id of ["column", "second-column"]) {
    $(id).replaceChildren(...table.header.map((name, place) => make("option", { value: place }, name || `column ${place + 1}`)));
  }
  $("column").selectedIndex = Math.max(0, usual);
  $("second-column").selectedIndex = table.header.findIndex((_, place) => place !== Math.max(0, usual));
  $("columns").hidden = false;
  fileSays(`${file.name}: ${count(table.rows.length, "row")}.`);
}

function parts(rows, column, second) {
  const most = Math.min(CHUNK, about.limits.texts), room = about.limits.body / 8;
  const found = [[]];
  let size = 0;
  for (const [place, row] of rows.entries()) {
    const text = row[column].slice(0, about.limits.characters);
    const pair = about.task.pair ? row[second].slice(0, about.limits.characters) : "";
    if (!text.trim() || (about.task.pair && !pair.trim())) continue;
    if (found.at(-1).length >= most || (size + text.length + pair.length > room && size)) { found.push([]); size = 0; }
    const cut = text.length < row[column].length || (about.task.pair && pair.length < row[second].length);
    found.at(-1).push({ place, text, pair, cut });
    size += text.length + pair.length;
  }
  return found.filter((part) => part.length);
}

async function patiently(body, signal) {
  for (;;) {
    try {
      return await (await ask("predict", body, signal)).json();
    } catch (error) {
      if (![429, 503, 504].includes(error.status)) throw error;
      await wait(1000 * Math.min(30, error.after || 1), signal); // busy: the server says when to come back
    }
  }
}

async function labelRows() {
  const column = $("column").selectedIndex, second = $("second-column").selectedIndex, own = (stopping = new AbortController());
  const { header, rows } = table, found = new Map(), wanted = $("precision").value;
  let cut = 0;
  $("label-rows").disabled = true;
  $("stop").hidden = $("progress").hidden = false;
  $("download").hidden = true;
  $("progress").max = rows.length;
  $("progress").value = 0;
  try {
    for (const part of parts(rows, column, second)) {
      const body = { texts: part.map((one) => one.text) };
      if (about.task.pair) body.pairs = part.map((one) => one.pair);
      const told = await patiently(wanted ? { ...body, abstain: Number(wanted) } : body, own.signal);
      for (const [index, one] of part.entries()) {
        const answer = told.predictions[index];
        answer.truncated ||= one.cut;
        cut += answer.truncated;
        found.set(one.place, answer);
      }
      $("progress").value = part.at(-1).place + 1;
      fileSays(`${found.size.toLocaleString("en")} of ${count(rows.length, "row")} labelled…`);
    }
    $("progress").value = rows.length;
    offer(header, rows, found, Boolean(wanted));
    const empty = rows.length - found.size;
    fileSays([`Done: ${count(found.size, "row")} labelled.`, empty ? `${count(empty, "row")} without text left as they are.` : "",
      cut ? `Of ${count(cut, "text")} only the beginning was read.` : ""].join(" ").trim());
    $("download").focus();
  } catch (error) {
    fileSays(error.name === "AbortError" ? "Stopped." : error.message, error.name !== "AbortError");
  } finally {
    $("label-rows").disabled = false;
    $("stop").hidden = true;
  }
}

const shareNames = () => about.labels.map((label) => `probability_${label}`);
const shareCells = (one) => about.labels.map((label) => one.probabilities[label].toFixed(6));
/** The columns that a file gets by the kind of answer, the cells of one row, and what the rows are counted by. */
const COLUMNS = {
  classes: () => ({ names: ["label", "probability", ...shareNames()], counted: (one) => [one.label],
    cells: (one) => [one.label, one.probability.toFixed(6), ...shareCells(one)] }),
  labels: () => ({ names: ["labels", ...shareNames()], counted: (one) => (one.labels.length ? one.labels : ["(none)"]),
    cells: (one) => [one.labels.join(";"), ...shareCells(one)] }),
  rating: () => ({ names: ["value"], counted: (one) => [String(Math.round(one.value))], cells: (one) => [one.value.toFixed(6)] }),
};

function offer(header, rows, found, abstaining) {
  const kind = COLUMNS[about.task.kind]();
  const names = [...kind.names, "truncated", ...(abstaining ? ["abstained"] : [])];
  const { split, mark } = table.layout;
  const lines = [written([...header, ...names.map((name) => freeName(name, header))], split)];
  const tally = new Map();
  for (const [place, row] of rows.entries()) {
    const one = found.get(place);
    if (!one) { lines.push(written([...row, ...names.map(() => "")], split)); continue; }
    for (const name of kind.counted(one)) tally.set(name, (tally.get(name) || 0) + 1);
    lines.push(written([...row, ...kind.cells(one), String(one.truncated), ...(abstaining ? [String(one.abstained)] : [])], split));
  }
  if (made) URL.revokeObjectURL(made);
  made = URL.createObjectURL(new Blob([mark + lines.join("\n") + "\n"], { type: "text/csv" }));
  const name = table.name.replace(/\.[^.]*$/, "") + "-labelled.csv";
  Object.assign($("download"), { href: made, download: name, textContent: `Download ${name}`, hidden: false });
  bars($("counts"), [...tally].sort((a, b) => b[1] - a[1]).map(([label, number]) => [label, number / rows.length, number.toLocaleString("en")]));
}

// a language model

async function nextPieces(text, signal) {
  try {
    const told = await (await ask("next", { prompt: text, count: 6 }, signal)).json();
    $("next-status").className = "remark";
    $("next-status").textContent = told.pieces[0].text ? `Likeliest: ${told.pieces[0].text.trim()}` : "Likeliest: the end of the text";
    $("next").replaceChildren(...told.pieces.map(({ text: piece, weight }) => {
      const button = make("button", { type: "button" }, make("span", {}, piece.trim() || (piece ? "␣" : "(the end)")),
        make("span", { class: "share" }, percent(weight)));
      button.disabled = !piece;
      button.addEventListener("click", () => { $("prompt").value += piece; $("prompt").dispatchEvent(new Event("input")); $("prompt").focus(); });
      return make("li", {}, button);
    }));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    $("next-status").className = "remark bad";
    $("next-status").textContent = error.message;
  }
}

async function goOn() {
  const own = (stopping = new AbortController()), box = $("prompt");
  $("go-on").disabled = true;
  $("enough").hidden = false;
  try {
    const body = { prompt: box.value, tokens: Math.min(60, about.limits.tokens), temperature: Number($("temperature").value), seed: Math.floor(Math.random() * 2 ** 31) };
    const reader = (await ask("generate", body, own.signal)).body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const events = (rest + part.value).split("\n\n");
      rest = events.pop();
      for (const event of events) box.value += JSON.parse(event.slice(6)).text || "";
      box.scrollTop = box.scrollHeight;
    }
  } catch (error) {
    if (error.name !== "AbortError") { $("next-status").className = "remark bad"; $("next-status").textContent = error.message; }
  } finally {
    $("go-on").disabled = false;
    $("enough").hidden = true;
    box.dispatchEvent(new Event("input"));
  }
}

// how it was trained

function chart({ title, x, lines }) {
  const NS = "http://www.w3.org/2000/svg", wide = 460, high = 230, left = 46, right = 12, top = 30, bottom = 34;
  const all = lines.flatMap((line) => line.points), xs = all.map((one) => one[0]), ys = all.map((one) => one[1]);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)], low = Math.min(...ys), high1 = Math.max(...ys);
  const gap = (high1 - low || 1) * 0.08, [y0, y1] = [low - gap, high1 + gap];
  const atX = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (wide - left - right);
  const atY = (value) => high - bottom - ((value - y0) / (y1 - y0)) * (high - top - bottom);
  const node = (tag, attributes, text = "") => {
    const made = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return made;
  };
  const told = lines.map((line) => `${line.name} from ${line.points[0][1].toFixed(3)} to ${line.points.at(-1)[1].toFixed(3)}`).join("; ");
  const svg = node("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": `${title} by ${x}: ${told}` });
  svg.append(node("path", { class: "axis", d: `M${left} ${top - 8}V${high - bottom}H${wide - right}` }));
  for (const value of [low, high1]) svg.append(node("text", { x: left - 6, y: atY(value) + 4, "text-anchor": "end" }, value.toFixed(2)));
  for (const [value, anchor] of [[x0, "start"], [x1, "end"]]) svg.append(node("text", { x: atX(value), y: high - 14, "text-anchor": anchor }, String(value)));
  svg.append(node("text", { x: (left + wide - right) / 2, y: high - 14, "text-anchor": "middle" }, x));
  lines.forEach((line, index) => {
    svg.append(node("polyline", { class: `line-${index}`, points: line.points.map((one) => `${atX(one[0]).toFixed(1)},${atY(one[1]).toFixed(1)}`).join(" ") }));
    svg.append(node("text", { class: `name-${index}`, x: left + 8 + 200 * index, y: 14 }, `${index ? "┅" : "━"} ${line.name}`));
  });
  return make("figure", {}, make("figcaption", {}, title), svg);
}

function showRun() {
  const figures = Object.entries(about.result);
  $("run").hidden = !figures.length && !about.curves.length && !about.report;
  $("result").replaceChildren(...figures.map(([name, value]) => make("div", {}, make("dt", {}, name),
    make("dd", {}, name.startsWith("accuracy") ? percent(value) : value.toFixed(3)))));
  $("curves").replaceChildren(...about.curves.map(chart));
  $("report").hidden = !about.report;
}

const GIVES = {
  classes: () => `A classifier of ${about.task.pair ? "pairs of texts" : "texts"}: ${about.labels.join(", ")}.`,
  labels: () => `It gives a text any number of these labels, or none: ${about.labels.join(", ")}.`,
  rating: () => `It gives a text a number between ${about.task.lowest} and ${about.task.highest}.`,
};

async function begin() {
  try {
    about = await (await ask("about")).json();
  } catch (error) {
    $("facts").textContent = error.message;
    $("facts").className = error.status === 401 ? "" : "bad";
    return;
  }
  const classifier = about.head_type === "classify";
  $("key-form").hidden = true;
  $("name").textContent = document.title = about.name;
  $("facts").textContent = classifier
    ? `${GIVES[about.task.kind]()} It reads ${about.context} tokens${about.windows ? " at a time" : ""}.`
    : `A language model; it was trained on pieces of ${about.context} tokens.`;
  $("version").textContent = `headstart ${about.version}`;
  $("classify").hidden = $("file").hidden = !classifier;
  $("second-box").hidden = $("second-column-box").hidden = !about.task.pair;
  $("file-title").textContent = about.task.kind === "rating" ? "Rate a file" : "Label a file";
  $("language").hidden = classifier;
  const offered = about.precisions.filter((value) => value >= 0.5 && (Math.round(value * 100) % 5 === 0 || value > 0.95));
  $("precision-box").hidden = !offered.length;
  $("precision").append(...offered.map((value) => make("option", { value }, `right ${Math.round(100 * value)} times in 100, or none`)));
  showRun();
  $("answer").className = "answer plain";
  (classifier ? $("text") : $("prompt")).focus();
  if (!classifier) retype(0);
}

let retype = () => {};
{
  const again = following($("text"), classify), continued = following($("prompt"), nextPieces);
  retype = continued;
  $("precision").addEventListener("change", () => again(0));
  $("second").addEventListener("input", () => again());
  $("csv").addEventListener("change", () => choose($("csv").files[0]));
  $("label-rows").addEventListener("click", labelRows);
  $("stop").addEventListener("click", () => stopping?.abort());
  $("go-on").addEventListener("click", goOn);
  $("enough").addEventListener("click", () => stopping?.abort());
  for (const name of ["dragover", "drop", "dragleave"]) {
    $("drop").addEventListener(name, (event) => {
      event.preventDefault();
      $("drop").classList.toggle("over", name === "dragover");
      if (name === "drop") choose(event.dataTransfer.files[0]);
    });
  }
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("key", $("key").value.trim());
    begin();
  });
  begin();
}
