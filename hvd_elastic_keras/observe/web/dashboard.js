"use strict";
// The page of a running job. Its token stays in this tab and goes to the job's launcher in a header.

const KEY = "hvd_elastic_token";
const SHOWN_CHANGES = 200;
const LOG_MS = 2000;
const AGAIN_MS = 1000;
const DRAW_MS = 250;
const WARNINGS = ["waiting", "changing", "stopping", "starting"];
const byId = (id) => document.getElementById(id);

let token = "";
let course = new Course();
let newest = null;
let drawing = false;
let shownChange = 0;
let logNumber = 0;
const charts = new Map();

// --- the launcher ----------------------------------------------------------------------

function takeToken() {
  if (location.hash.length > 1) {
    sessionStorage.setItem(KEY, decodeURIComponent(location.hash.slice(1)));
    history.replaceState(null, "", location.pathname);
  }
  token = sessionStorage.getItem(KEY) || "";
}

function ask(path, options = {}) {
  return fetch(path, { ...options, headers: { Authorization: `Bearer ${token}` }, cache: "no-store" });
}

function login(why) {
  byId("refused").textContent = why;
  byId("login").hidden = false;
  byId("main").hidden = true;
  setPhase("token needed", "warn");
}

async function listen() {
  let over = false;
  while (!over) {
    try {
      const answer = await ask("v1/stream");
      if (answer.status === 401) return login(token ? "This is not the token of this job." : "");
      if (!answer.ok) throw new Error(`the launcher answers ${answer.status}`);
      byId("login").hidden = true;
      for await (const news of events(answer.body)) {
        take(news);
        over = news.over;
      }
    } catch {
      byId("connection").textContent = "no connection, trying again";
    }
    if (!over) await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
  byId("connection").textContent = "the job has ended";
  setPhase(newest.finished ? newest.finished.status : "ended", newest.finished?.status === "finished" ? "good" : "warn");
  for (const button of document.querySelectorAll("main button")) button.disabled = true;
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) yield JSON.parse(part.slice("data: ".length));
  }
}

function take(news) {
  if (news.first) {
    course = new Course();
    shownChange = 0;
    byId("timeline").replaceChildren();
  }
  course.add(news);
  newest = news;
  byId("connection").textContent = "live";
  if (drawing) return;
  drawing = true;
  setTimeout(draw, news.first ? 0 : DRAW_MS);
}

// --- what is asked for -----------------------------------------------------------------

async function change(path, wish) {
  const said = byId("said");
  said.classList.remove("bad");
  const command_id = Array.from(crypto.getRandomValues(new Uint8Array(8)), (b) => b.toString(16)).join("");
  try {
    const answer = await ask(path, { method: "POST", body: JSON.stringify({ ...wish, command_id }) });
    const reply = await answer.json();
    said.textContent = reply.text;
    said.classList.toggle("bad", !reply.accepted);
  } catch (error) {
    said.textContent = `The launcher does not answer: ${error.message}`;
    said.classList.add("bad");
  }
}

function revocation() {
  const deadline = byId("deadline").value.trim();
  return { revoke: 1, ...(deadline && { deadline_s: Number(deadline) }) };
}

function sure(what) {
  return confirm(`${what}?`);
}

function offer() {
  byId("close-log").onclick = () => {
    logNumber += 1;
    byId("log").hidden = true;
  };
  byId("add").onclick = () => change("v1/workers", { add: 1 });
  byId("remove").onclick = () => sure("Remove a worker") && change("v1/workers", { remove: 1 });
  byId("grant").onclick = () => change("v1/slots", { grant: 1 });
  byId("revoke").onclick = () => sure("Revoke a slot") && change("v1/slots", revocation());
  byId("login").onsubmit = (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, (token = byId("token").value.trim()));
    byId("token").value = "";
    listen();
  };
}

// --- what is shown ---------------------------------------------------------------------

function draw() {
  drawing = false;
  byId("main").hidden = false;
  drawHead();
  drawCharts();
  drawWorkers();
  drawTimeline();
  byId("goodput").replaceChildren(...goodput(newest.status.spent_s));
}

function setPhase(text, kind) {
  const pill = byId("phase");
  pill.textContent = text;
  pill.className = `pill ${kind}`;
}

function drawHead() {
  const { status, job, totals, newest: told } = newest;
  const name = job ? (job.model || job.job_dir).replace(/\/$/, "").split("/").pop() : "elastic job";
  byId("name").textContent = document.title = name;
  if (!newest.over) setPhase(status.phase, WARNINGS.includes(status.phase) ? "warn" : "good");
  byId("detail").textContent = status.detail;
  const ranks = status.workers.filter((worker) => worker.rank !== null).length;
  const unit = course.unit();
  const [, speed] = course.speeds().at(-1) ?? [];
  const values = [
    ...(told?.epoch === null ? [] : [["epoch", told ? epochOf(told) : "–"]]),
    [unit, number(status.step)],
    ...(told && told.metrics.loss === undefined ? [] : [["loss", number(told?.metrics.loss, 3)]]),
    [course.speedName(), number(speed, 3)],
    [`${unit} time`, duration(told?.step_s)],
    ...(told?.learning_rate ? [["learning rate", number(told.learning_rate, 3)]] : []),
    ...(told?.steps_left > 0 && !newest.over ? [["left", duration(told.steps_left * told.step_s)]] : []),
    ["workers", ranks === status.workers.length ? number(ranks) : `${ranks} of ${status.workers.length}`],
    ["stalled", duration(totals.stall_s)],
    ["goodput", goodShare(status.spent_s)],
  ];
  byId("tiles").replaceChildren(...tiles(values));
}

function epochOf(told) {
  const present = number(told.epoch + 1);
  return told.epochs ? `${present} / ${number(told.epochs)}` : present;
}

function chart(title, options, data) {
  if (!charts.has(title)) {
    const place = card(title);
    byId("charts").append(place);
    charts.set(title, new Chart(place, { ...options, marks: () => course.rounds().map((round) => round.time) }));
  }
  charts.get(title).set(data);
}

function drawCharts() {
  const [loss, ...others] = course.metrics();
  if (loss) chart(loss, { series: [loss, `val_${loss}`] }, course.metric(loss, "time"));
  const speed = course.speedName();
  // The name of the speed is not known before the first steps.
  if (course.curves.steps.length) chart(speed, { series: [speed], fromZero: true }, course.speed());
  chart("workers", { series: ["workers"], stepped: true, fromZero: true }, course.sizes(newest.over ? 0 : Date.now() / 1000));
  for (const name of others) chart(name, { series: [name, `val_${name}`] }, course.metric(name, "time"));
}

function drawWorkers() {
  const { status, shares, newest: told } = newest;
  const whole = Object.values(shares).reduce((sum, share) => sum + share, 0);
  const workers = [...status.workers].sort((a, b) => (a.rank ?? Infinity) - (b.rank ?? Infinity) || 0);
  const isMember = (worker) => worker.rank !== null;
  const share = (worker) => (isMember(worker) && whole ? `${shares[worker.worker_id] ?? "–"} of ${whole}` : "–");
  const part = (worker) => duration(isMember(worker) ? (told?.part_s[worker.rank] ?? told?.step_s) : null);
  const shown = [
    ["worker", (worker) => worker.worker_id],
    ["state", (worker) => worker.phase],
    ["host", (worker) => worker.host],
    ["rank", (worker) => number(worker.rank), "number"],
    ["seniority", (worker) => number(worker.seniority), "number minor"],
    ["micro-batches", share, "number"],
    [told?.part_s.length ? "own part of a step" : `${course.unit()} time`, part, "number"],
    ["step", (worker) => number(worker.step), "number"],
    ["cores", (worker) => (worker.memory_bytes ? worker.cores.toFixed(2) : "–"), "number"],
    ["memory", (worker) => (worker.memory_bytes ? `${number(Math.round(worker.memory_bytes / 2 ** 20))} MiB` : "–"), "number"],
    ["heard", (worker) => (worker.heartbeat_age_s === null ? "–" : `${worker.heartbeat_age_s.toFixed(1)} s ago`), "number minor"],
    ["process", (worker) => number(worker.pid).replaceAll(",", ""), "number minor"],
    ["", logButton, "number"],
    ["", removal, "number"],
  ];
  renew(byId("workers"), table(shown, workers), JSON.stringify(workers.map((worker) => worker.worker_id)));
  const slots = status.slots.map((slot) => `${slot.host}: ${slot.used} of ${slot.granted} slots used`);
  byId("slots").textContent = `${slots.join("; ")} · restarts ${status.restarts_used} of ${status.max_restarts}`;
}

/** Shows a table in place of another one. For the same workers, only texts change: buttons stay, and can be clicked. */
function renew(place, made, workers) {
  if (place.dataset.workers !== workers) {
    place.dataset.workers = workers;
    place.replaceChildren(made);
    return;
  }
  const cells = place.querySelectorAll("th, td");
  made.querySelectorAll("th, td").forEach((cell, i) => {
    if (!cell.firstElementChild) cells[i].textContent = cell.textContent;
  });
}

function logButton(worker) {
  const button = element("button", { className: "link", textContent: "log" });
  button.onclick = () => showLog(worker.worker_id);
  return button;
}

/** Shows the end of a worker's log until another one is asked for; again and again while the job runs. */
async function showLog(workerId) {
  const mine = ++logNumber;
  byId("log").hidden = false;
  byId("log-of").textContent = `Log of ${workerId}`;
  byId("log-lines").textContent = "";
  while (mine === logNumber) {
    const lines = byId("log-lines");
    const atEnd = lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 1;
    try {
      const answer = await ask(`v1/log?worker_id=${encodeURIComponent(workerId)}`);
      const text = answer.ok ? await answer.text() : (await answer.json()).text;
      if (mine !== logNumber) return;
      lines.textContent = text;
    } catch {
      if (!lines.textContent) lines.textContent = "The launcher does not answer.";
    }
    if (atEnd) lines.scrollTop = lines.scrollHeight;
    if (newest.over) return;
    await new Promise((done) => setTimeout(done, LOG_MS));
  }
}

function removal(worker) {
  const button = element("button", { className: "link", textContent: "remove", disabled: newest.over });
  button.onclick = () =>
    sure(`Remove ${worker.worker_id}`) && change("v1/workers", { remove_worker_id: worker.worker_id });
  return button;
}

function drawTimeline() {
  const list = byId("timeline");
  for (const item of course.changes) {
    if (item.n <= shownChange) continue;
    const text = element("div", {}, element("p", { textContent: item.text }));
    for (const line of item.more) text.append(element("p", { className: "quiet", textContent: line.trim() }));
    list.prepend(
      element("li", { className: item.kind }, element("time", { textContent: clock(item.time) }), element("i"), text),
    );
    shownChange = item.n;
  }
  while (list.children.length > SHOWN_CHANGES) list.lastChild.remove();
}

takeToken();
offer();
if (token) listen();
else login("");
