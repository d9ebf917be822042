"use strict";
// The page of `headstart serve`: it sends requests to this server only.

const $ = (id) => document.getElementById(id);
const percent = (fraction) => (fraction > 0.999 && fraction < 1 ? "> 99.9 %" : `${(100 * fraction).toFixed(1)} %`);
const pluralize = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const TEXT_COLUMNS = ["text", "review", "sentence", "content", "body", "document", "comment", "message", "tweet"];
const MAX_TEXTS_PER_REQUEST = 64;
let about = null;

class ServerError extends Error {
  constructor(status, detail, retryAfter) { super(detail); this.status = status; this.retryAfter = retryAfter; }
}

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

async function request(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const key = sessionStorage.getItem("key");
  if (key) headers.Authorization = `Bearer ${key}`;
  const options = body ? { method: "POST", body: JSON.stringify(body), headers, signal } : { headers, signal };
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server does not respond.");
  }
  if (response.ok) return response;
  const errorBody = await response.json().catch(() => ({ detail: `The server responded with status ${response.status}.` }));
  if (response.status === 401) { $("key-form").hidden = false; $("key").focus(); }
  throw new ServerError(response.status, errorBody.detail, Number(response.headers.get("Retry-After") || 1));
}

const wait = (ms, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, ms);
  signal?.addEventListener("abort", () => { clearTimeout(timer); reject(new DOMException("", "AbortError")); });
});

/** Call `answer` once typing pauses; the answer to an older text is never shown. */
function answerWhileTyping(box, answer) {
  let running = null;
  const restart = async (delay = 250) => {
    running?.abort();
    const controller = (running = new AbortController());
    try {
      await wait(delay, controller.signal);
      await answer(box.value, controller.signal);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  };
  box.addEventListener("input", () => restart());
  return restart;
}

/** A name that may be broken after its underscores and the like, rather than within a word. */
const breakable = (name) => name.split(/(?<=[_/.:|-])/).flatMap((part, index) => (index ? [make("wbr"), part] : [part]));

function drawBars(list, rows) {
  list.replaceChildren(...rows.map(([name, fraction, value]) => {
    const fill = make("span");
    fill.style.width = `${Math.max(0, Math.min(100, 100 * fraction))}%`;
    return make("li", {}, make("span", { class: "name" }, ...breakable(name)), make("span", { class: "bar", "aria-hidden": "true" }, fill),
      make("span", { class: "figure" }, value));
  }));
}

// a text and its label

/** The body of a request: a text, and the second one for a model of text pairs. */
const requestBody = (text) => (about.task.pair ? { text, pair: $("second").value } : { text });

/** Whether a rating has bounds: that of an imported model may have none, which is the largest float there. */
const isBounded = () => about.task.highest < 3e38;

/** By task: draw the bars of an answer, and return its label and a summary. */
const SHOW_ANSWER = {
  classes: (answer) => {
    const mostProbable = Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1])[0][0];
    drawBars($("probabilities"), Object.entries(answer.probabilities).map(([name, probability]) => [name, probability, percent(probability)]));
    return { label: mostProbable, summary: answer.abstained
      ? `No prediction: ${mostProbable} has a probability of ${percent(answer.probability)}` : `${answer.label}, ${percent(answer.probability)}` };
  },
  labels: (answer) => {
    const rows = Object.entries(answer.probabilities);
    drawBars($("probabilities"), rows.map(([name, probability]) => [name, probability,
      `${percent(probability)}${answer.labels.includes(name) ? " ✓" : ""} (threshold ${percent(about.task.thresholds[name])})`]));
    return { label: rows.sort((a, b) => b[1] - a[1])[0][0], summary: answer.labels.join(", ") || "No label" };
  },
  rating: (answer) => {
    const { lowest, highest } = about.task;
    drawBars($("probabilities"), isBounded()
      ? [[`${lowest} to ${highest}`, (answer.value - lowest) / (highest - lowest), answer.value.toFixed(2)]] : []);
    return { label: "rating", summary: answer.value.toFixed(2) };
  },
};

async function classify(text, signal) {
  const output = $("answer");
  if (!text.trim() || (about.task.pair && !$("second").value.trim())) {
    output.className = "answer plain";
    output.textContent = "No text yet.";
    $("remark").hidden = $("why").hidden = true;
    $("probabilities").replaceChildren();
    return;
  }
  try {
    const precision = $("precision").value;
    const body = precision ? { ...requestBody(text), abstain: Number(precision) } : requestBody(text);
    const answer = (await (await request("predict", body, signal)).json()).predictions[0];
    const { label, summary } = SHOW_ANSWER[about.task.kind](answer);
    output.className = "answer";
    output.textContent = summary;
    $("remark").hidden = !answer.truncated;
    $("remark").className = "remark strong";
    $("remark").textContent = answer.truncated ? `The text was truncated: the ${about.classifier === "blend" ? "network" : "model"} uses the first ${about.context} tokens.` : "";
    const explanation = await (await request("explain", { ...requestBody(text), label }, signal)).json();
    showExplanation(explanation);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    output.className = "answer plain bad";
    output.textContent = error.message;
    $("why").hidden = true;
  }
}

function showExplanation(explanation) {
  const words = explanation.words.filter((word) => word.text);
  const maxWeight = Math.max(...words.map((word) => Math.abs(word.weight)), 1e-12);
  const shown = words.slice(0, 600).map((word) => {
    const strength = Math.abs(word.weight) / maxWeight;
    if (strength < 0.15) return [make("span", {}, word.text), " "];
    const side = word.weight > 0 ? "for" : "against";
    const emphasis = strength > 0.5 ? " strong" : "";
    return [make("span", { class: side + emphasis }, word.text, make("sup", {}, word.weight > 0 ? "+" : "−")), " "];
  });
  $("words").replaceChildren(...shown.flat(), words.length > 600 ? `… and ${words.length - 600} more words` : "");
  $("why-title").textContent = `Words that influenced “${explanation.label}”`;
  $("strongest").caption.textContent = `The strongest words for and against “${explanation.label}”`;
  const strongest = [...words].sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight)).slice(0, 5);
  $("strongest").tBodies[0].replaceChildren(...strongest.map((word) => make("tr", {},
    make("th", { scope: "row" }, word.text), make("td", {}, word.weight > 0 ? "for" : "against"),
    make("td", { class: "number" }, `${word.weight > 0 ? "+" : "−"}${Math.abs(word.weight).toFixed(2)}`))));
  $("why").hidden = false;
}

// a file of texts

// A first line that declares the separator to Excel; it is not a row.
const SEPARATOR_LINE = /^[\r\n]*("?)sep=([,;\t])\1(?:\r?\n|$)/i;

// The rule of the command line: a comma, unless the header has none outside quotes but has semicolons, or else tabs.
function detectSeparator(content) {
  const separators = new Set();
  let quoted = false, atCellStart = true;
  for (let index = Math.max(content.search(/[^\r\n]/), 0); index < content.length; index += 1) {
    const character = content[index];
    if (quoted) {
      if (character === '"' && content[index + 1] === '"') index += 1;
      else quoted = character !== '"';
    } else if (character === '"' && atCellStart) { quoted = true; atCellStart = false; }
    else if (character === "," || character === "\n" || character === "\r") {
      if (character === ",") return ",";
      break;
    } else {
      atCellStart = character === ";" || character === "\t";
      if (atCellStart) separators.add(character);
    }
  }
  return (!quoted && [";", "\t"].find((separator) => separators.has(separator))) || ",";
}

function parseCsv(content, separator) {
  const rows = [];
  let row = [], cell = "", quoted = false, index = 0, wasQuoted = false;
  const endRow = () => {
    row.push(cell);
    if (row.length > 1 || row[0] !== "" || wasQuoted) rows.push(row);
    row = []; cell = ""; wasQuoted = false;
  };
  while (index < content.length) {
    const character = content[index];
    if (quoted) {
      const end = content.indexOf('"', index);
      if (end < 0) throw new Error(`Row ${rows.length} has an opening quotation mark without a closing one.`);
      cell += content.slice(index, end);
      if (content[end + 1] === '"') { cell += '"'; index = end + 2; } else { quoted = false; index = end + 1; }
    } else if (character === '"' && cell === "") { quoted = wasQuoted = true; index += 1; }
    else if (character === separator) { row.push(cell); cell = ""; index += 1; }
    else if (character === "\n" || character === "\r") {
      endRow();
      index += character === "\r" && content[index + 1] === "\n" ? 2 : 1;
    } else { cell += character; index += 1; }
  }
  if (cell !== "" || row.length || wasQuoted) endRow();
  const [header, ...dataRows] = rows;
  if (!header || !dataRows.length) throw new Error("The file has no rows below its header.");
  const mismatch = dataRows.findIndex((cells) => cells.length !== header.length);
  if (mismatch >= 0) throw new Error(`Row ${mismatch + 1} has ${pluralize(dataRows[mismatch].length, "cell")}, the header has ${header.length}.`);
  return { header, rows: dataRows };
}

const formatRow = (cells, separator) => cells.map((cell) => (/[",;\t\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell)).join(separator);

function uniqueName(name, existing) {
  while (existing.includes(name)) name = `predicted_${name}`;
  return name;
}

let table = null, abortController = null, downloadUrl = null;

function setFileStatus(message, bad = false) {
  $("file-status").textContent = message;
  $("file-status").className = bad ? "bad" : "";
}

/** The column of the text: that of training, else the first usual name, else the column with the longest cells. */
function findTextColumn({ header, rows }) {
  const names = header.map((name) => name.trim().toLowerCase());
  const known = [header.indexOf(about.columns.text_column), ...TEXT_COLUMNS.map((name) => names.indexOf(name))].find((index) => index >= 0);
  if (known !== undefined) return known;
  const lengths = header.map((_, index) => rows.slice(0, 200).reduce((sum, row) => sum + row[index].length, 0));
  return lengths.indexOf(Math.max(...lengths));
}

async function openFile(file) {
  abortController?.abort();
  table = null;
  $("columns").hidden = $("download").hidden = $("progress").hidden = true;
  $("counts").replaceChildren();
  if (!file) return;
  setFileStatus(`Reading ${file.name}…`);
  try {
    const bytes = new Uint8Array(await file.arrayBuffer());
    const content = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    const isTsv = /\.tsv$/i.test(file.name), declared = isTsv ? null : SEPARATOR_LINE.exec(content);
    const csvContent = declared ? content.slice(declared[0].length) : content, separator = isTsv ? "\t" : declared ? declared[2] : detectSeparator(content);
    // a .csv keeps its layout: spreadsheets detect UTF-8 by the byte order mark, and open one kind of separator
    const byteOrderMark = bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf ? "\ufeff" : "";
    const layout = isTsv ? { separator: ",", prefix: "" } : { separator, prefix: byteOrderMark + (declared ? `sep=${separator}\n` : "") };
    table = { name: file.name, layout, ...parseCsv(csvContent, separator) };
  } catch (error) {
    setFileStatus(error instanceof TypeError ? `${file.name} is not UTF-8 text; save it as CSV in UTF-8.` : error.message, true);
    return;
  }
  const textColumn = findTextColumn(table), secondColumn = table.header.indexOf(about.columns.second_column);
  for (const id of ["column", "second-column"]) {
    $(id).replaceChildren(...table.header.map((name, index) => make("option", { value: index }, name || `column ${index + 1}`)));
  }
  $("column").selectedIndex = textColumn;
  $("second-column").selectedIndex = secondColumn >= 0 ? secondColumn : table.header.findIndex((_, index) => index !== textColumn);
  $("columns").hidden = false;
  setFileStatus(`${file.name}: ${pluralize(table.rows.length, "row")}.`);
}

function splitIntoRequests(rows, column, second) {
  const maxTexts = Math.min(MAX_TEXTS_PER_REQUEST, about.limits.texts), maxCharacters = about.limits.body / 8;
  const requests = [[]];
  let size = 0;
  for (const [index, row] of rows.entries()) {
    const text = row[column].slice(0, about.limits.characters);
    const pair = about.task.pair ? row[second].slice(0, about.limits.characters) : "";
    if (!text.trim() || (about.task.pair && !pair.trim())) continue;
    if (requests.at(-1).length >= maxTexts || (size + text.length + pair.length > maxCharacters && size)) { requests.push([]); size = 0; }
    const truncated = text.length < row[column].length || (about.task.pair && pair.length < row[second].length);
    requests.at(-1).push({ index, text, pair, truncated });
    size += text.length + pair.length;
  }
  return requests.filter((texts) => texts.length);
}

async function predictWithRetry(body, signal) {
  for (;;) {
    try {
      return await (await request("predict", body, signal)).json();
    } catch (error) {
      if (![429, 503, 504].includes(error.status)) throw error;
      await wait(1000 * Math.min(30, error.retryAfter || 1), signal); // busy: the server says when to retry
    }
  }
}

async function labelRows() {
  const column = $("column").selectedIndex, second = $("second-column").selectedIndex, controller = (abortController = new AbortController());
  const { header, rows } = table, answers = new Map(), precision = $("precision").value;
  let truncated = 0;
  $("label-rows").disabled = true;
  $("stop").hidden = $("progress").hidden = false;
  $("download").hidden = true;
  $("progress").max = rows.length;
  $("progress").value = 0;
  try {
    for (const texts of splitIntoRequests(rows, column, second)) {
      const body = { texts: texts.map((item) => item.text) };
      if (about.task.pair) body.pairs = texts.map((item) => item.pair);
      const response = await predictWithRetry(precision ? { ...body, abstain: Number(precision) } : body, controller.signal);
      for (const [position, item] of texts.entries()) {
        const answer = response.predictions[position];
        answer.truncated ||= item.truncated;
        truncated += answer.truncated;
        answers.set(item.index, answer);
      }
      $("progress").value = texts.at(-1).index + 1;
      setFileStatus(`${answers.size.toLocaleString("en")} of ${pluralize(rows.length, "row")} labelled…`);
    }
    $("progress").value = rows.length;
    offerDownload(header, rows, answers, Boolean(precision));
    const empty = rows.length - answers.size;
    setFileStatus([`Done: ${pluralize(answers.size, "row")} labelled.`, empty ? `${pluralize(empty, "row")} without text unchanged.` : "",
      truncated ? `${pluralize(truncated, "text")} truncated.` : ""].join(" ").trim());
    $("download").focus();
  } catch (error) {
    setFileStatus(error.name === "AbortError" ? "Stopped." : error.message, error.name !== "AbortError");
  } finally {
    $("label-rows").disabled = false;
    $("stop").hidden = true;
  }
}

const probabilityNames = () => about.labels.map((label) => `probability_${label}`);
const probabilityCells = (answer) => about.labels.map((label) => answer.probabilities[label].toFixed(6));
/** By task: the columns that a file gets, the cells of one answer, and the names that rows are counted by. */
const COLUMNS = {
  classes: () => ({ names: ["label", "probability", ...probabilityNames()], counted: (answer) => [answer.label],
    cells: (answer) => [answer.label, answer.probability.toFixed(6), ...probabilityCells(answer)] }),
  labels: () => ({ names: ["labels", ...probabilityNames()], counted: (answer) => (answer.labels.length ? answer.labels : ["(none)"]),
    cells: (answer) => [answer.labels.join(";"), ...probabilityCells(answer)] }),
  rating: () => ({ names: ["value"], counted: (answer) => [String(Math.round(answer.value))], cells: (answer) => [answer.value.toFixed(6)] }),
};

function offerDownload(header, rows, answers, abstaining) {
  const columns = COLUMNS[about.task.kind]();
  const names = [...columns.names, "truncated", ...(abstaining ? ["abstained"] : [])];
  const { separator, prefix } = table.layout;
  const lines = [formatRow([...header, ...names.map((name) => uniqueName(name, header))], separator)];
  const counts = new Map();
  for (const [index, row] of rows.entries()) {
    const answer = answers.get(index);
    if (!answer) { lines.push(formatRow([...row, ...names.map(() => "")], separator)); continue; }
    for (const name of columns.counted(answer)) counts.set(name, (counts.get(name) || 0) + 1);
    lines.push(formatRow([...row, ...columns.cells(answer), String(answer.truncated), ...(abstaining ? [String(answer.abstained)] : [])], separator));
  }
  if (downloadUrl) URL.revokeObjectURL(downloadUrl);
  downloadUrl = URL.createObjectURL(new Blob([prefix + lines.join("\n") + "\n"], { type: "text/csv" }));
  const name = table.name.replace(/\.[^.]*$/, "") + "-labelled.csv";
  Object.assign($("download"), { href: downloadUrl, download: name, textContent: `Download ${name}`, hidden: false });
  drawBars($("counts"), [...counts].sort((a, b) => b[1] - a[1]).map(([label, number]) => [label, number / rows.length, number.toLocaleString("en")]));
}

// a language model

async function nextPieces(text, signal) {
  try {
    const next = await (await request("next", { prompt: text, count: 6 }, signal)).json();
    $("next-status").className = "remark";
    $("next-status").textContent = next.pieces[0].text ? `Most likely: ${next.pieces[0].text.trim()}` : "Most likely: end of text";
    $("next").replaceChildren(...next.pieces.map(({ text: piece, weight }) => {
      const button = make("button", { type: "button" }, make("span", {}, piece.trim() || (piece ? "␣" : "(the end)")),
        make("span", { class: "probability" }, percent(weight)));
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

async function generate() {
  const controller = (abortController = new AbortController()), box = $("prompt");
  $("go-on").disabled = true;
  $("stop-generating").hidden = false;
  try {
    const body = { prompt: box.value, tokens: Math.min(60, about.limits.tokens), temperature: Number($("temperature").value), seed: Math.floor(Math.random() * 2 ** 31) };
    const reader = (await request("generate", body, controller.signal)).body.pipeThrough(new TextDecoderStream()).getReader();
    let incomplete = "";
    for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) {
      const events = (incomplete + chunk.value).split("\n\n");
      incomplete = events.pop();
      for (const event of events) box.value += JSON.parse(event.slice(6)).text || "";
      box.scrollTop = box.scrollHeight;
    }
  } catch (error) {
    if (error.name !== "AbortError") { $("next-status").className = "remark bad"; $("next-status").textContent = error.message; }
  } finally {
    $("go-on").disabled = false;
    $("stop-generating").hidden = true;
    box.dispatchEvent(new Event("input"));
  }
}

// how it was trained

function chart({ title, x, lines }) {
  const NS = "http://www.w3.org/2000/svg", width = 460, height = 230, marginLeft = 46, marginRight = 12, marginTop = 30, marginBottom = 34;
  const points = lines.flatMap((line) => line.points), xs = points.map((point) => point[0]), ys = points.map((point) => point[1]);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)], minY = Math.min(...ys), maxY = Math.max(...ys);
  const padding = (maxY - minY || 1) * 0.08, [y0, y1] = [minY - padding, maxY + padding];
  const atX = (value) => marginLeft + ((value - x0) / (x1 - x0 || 1)) * (width - marginLeft - marginRight);
  const atY = (value) => height - marginBottom - ((value - y0) / (y1 - y0)) * (height - marginTop - marginBottom);
  const node = (tag, attributes, text = "") => {
    const element = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    return element;
  };
  const summary = lines.map((line) => `${line.name} from ${line.points[0][1].toFixed(3)} to ${line.points.at(-1)[1].toFixed(3)}`).join("; ");
  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title} by ${x}: ${summary}` });
  svg.append(node("path", { class: "axis", d: `M${marginLeft} ${marginTop - 8}V${height - marginBottom}H${width - marginRight}` }));
  for (const value of [minY, maxY]) svg.append(node("text", { x: marginLeft - 6, y: atY(value) + 4, "text-anchor": "end" }, value.toFixed(2)));
  for (const [value, anchor] of [[x0, "start"], [x1, "end"]]) svg.append(node("text", { x: atX(value), y: height - 14, "text-anchor": anchor }, String(value)));
  svg.append(node("text", { x: (marginLeft + width - marginRight) / 2, y: height - 14, "text-anchor": "middle" }, x));
  lines.forEach((line, index) => {
    svg.append(node("polyline", { class: `line-${index}`, points: line.points.map((point) => `${atX(point[0]).toFixed(1)},${atY(point[1]).toFixed(1)}`).join(" ") }));
    svg.append(node("text", { class: `name-${index}`, x: marginLeft + 8 + 200 * index, y: 14 }, `${index ? "┅" : "━"} ${line.name}`));
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

const MAX_LISTED_LABELS = 12;
const listLabels = () => (about.labels.length <= MAX_LISTED_LABELS ? about.labels.join(", ")
  : `${about.labels.slice(0, MAX_LISTED_LABELS).join(", ")} and ${about.labels.length - MAX_LISTED_LABELS} more`);
const DESCRIBE_CLASSIFIER = {
  network: () => `Texts longer than ${about.context} tokens are ${about.windows ? "split into windows" : "truncated"}.`,
  linear: () => "It is a linear classifier, which uses the whole text.",
  blend: () => `It is a blend of a network, which uses ${about.windows ? `windows of ${about.context}` : `the first ${about.context}`} tokens, and a linear classifier.`,
};
const DESCRIBE_TASK = {
  classes: () => `A classifier of ${about.task.pair ? "pairs of texts" : "texts"}: ${listLabels()}.`,
  labels: () => `It assigns any number of these labels to a text, or none: ${listLabels()}.`,
  rating: () => (isBounded() ? `It predicts a number between ${about.task.lowest} and ${about.task.highest}.` : "It predicts a number."),
};

async function start() {
  try {
    about = await (await request("about")).json();
  } catch (error) {
    $("facts").textContent = error.message;
    $("facts").className = error.status === 401 ? "" : "bad";
    return;
  }
  const classifier = about.head_type === "classify";
  $("key-form").hidden = true;
  $("name").textContent = document.title = about.name;
  $("facts").textContent = classifier
    ? `${DESCRIBE_TASK[about.task.kind]()} ${DESCRIBE_CLASSIFIER[about.classifier]()}`
    : `A language model, trained on sequences of ${about.context} tokens.`;
  $("quality").hidden = !about.quality || about.quality.grade === "better";
  $("quality").textContent = (about.quality?.sentence || "").replaceAll("`", "");
  $("version").textContent = `headstart ${about.version}`;
  $("classify").hidden = $("file").hidden = !classifier;
  $("second-box").hidden = $("second-column-box").hidden = !about.task.pair;
  $("file-title").textContent = about.task.kind === "rating" ? "Rate a file" : "Label a file";
  $("language").hidden = classifier;
  const precisions = about.precisions.filter((value) => value >= 0.5 && (Math.round(value * 100) % 5 === 0 || value > 0.95));
  $("precision-box").hidden = !precisions.length;
  $("precision").append(...precisions.map((value) => make("option", { value }, `${Math.round(100 * value)} % correct, otherwise no prediction`)));
  showRun();
  $("answer").className = "answer plain";
  (classifier ? $("text") : $("prompt")).focus();
  if (!classifier) suggestNext(0);
}

let suggestNext = () => {};
{
  const classifyAgain = answerWhileTyping($("text"), classify);
  suggestNext = answerWhileTyping($("prompt"), nextPieces);
  $("precision").addEventListener("change", () => classifyAgain(0));
  $("second").addEventListener("input", () => classifyAgain());
  $("csv").addEventListener("change", () => openFile($("csv").files[0]));
  $("label-rows").addEventListener("click", labelRows);
  $("stop").addEventListener("click", () => abortController?.abort());
  $("go-on").addEventListener("click", generate);
  $("stop-generating").addEventListener("click", () => abortController?.abort());
  for (const name of ["dragover", "drop", "dragleave"]) {
    $("drop").addEventListener(name, (event) => {
      event.preventDefault();
      $("drop").classList.toggle("over", name === "dragover");
      if (name === "drop") openFile(event.dataTransfer.files[0]);
    });
  }
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("key", $("key").value.trim());
    start();
  });
  start();
}
