"use strict";
// The page of a job that has ended, or of the present state of one that runs.

const shown = JSON.parse(document.getElementById("data").textContent);
const course = new Course();
course.add(shown);

function spent() {
  return shown.finished ? shown.finished.spent_s : {};
}

function times() {
  return [...course.curves.sizes, ...course.curves.steps, ...course.changes].map((point) => point.time);
}

function drawHead() {
  const { job, finished } = shown;
  const name = (job?.model || shown.job_dir).replace(/\/$/, "").split("/").pop();
  document.getElementById("name").textContent = document.title = name;
  const status = document.getElementById("status");
  status.textContent = finished ? finished.status : "not ended";
  status.classList.add({ finished: "good", failed: "bad" }[finished?.status] || "warn");
  document.getElementById("reason").textContent = finished && finished.status !== finished.reason ? finished.reason : "";
  const all = times();
  if (all.length) document.getElementById("when").textContent = new Date(1000 * Math.min(...all)).toLocaleString("en-GB");
}

function overview() {
  const { totals, finished, newest } = shown;
  const all = times();
  const epochs = course.curves.epochs;
  const loss = epochs.at(-1)?.values.loss ?? newest?.metrics.loss;
  const speeds = course.speeds().map(([, speed]) => speed).filter((speed) => speed !== null).sort((a, b) => a - b);
  const unit = course.unit();
  return element(
    "div",
    { className: "tiles" },
    ...tiles([
      ...(loss === undefined ? [] : [[newest && newest.epoch === null ? "loss" : "last loss", number(loss, 3)]]),
      [`${unit}s`, number(finished?.step ?? newest?.step)],
      [course.speedName(), number(speeds[speeds.length >> 1], 3)],
      ["in all", duration(all.length ? Math.max(...all) - Math.min(...all) : null)],
      ["goodput", goodShare(spent())],
      ["failures", number(totals.failures)],
      ["stalled", duration(totals.stall_s)],
      [`${unit}s lost`, number(totals.steps_lost)],
    ]),
  );
}

function charts(place) {
  const marks = () => course.rounds().map((round) => round.time);
  const steps = () => course.rounds().map((round) => round.round.step);
  const add = (title, options, data) => {
    const made = card(title);
    place.append(made);
    new Chart(made, options).set(data);
  };
  for (const name of course.metrics()) {
    const validated = course.curves.epochs.some((epoch) => `val_${name}` in epoch.values);
    const series = validated ? [name, `val_${name}`] : [name];
    const data = (by) => course.metric(name, by).slice(0, 1 + series.length);
    add(`${name} against steps`, { series, byTime: false, marks: steps }, data("step"));
    add(`${name} against time`, { series, marks }, data("time"));
  }
  const speed = course.speedName();
  add(speed, { series: [speed], fromZero: true, marks }, course.speed());
  add("workers", { series: ["workers"], stepped: true, fromZero: true, marks }, course.sizes(Math.max(...times())));
}

function wide(title, ...content) {
  const made = card(title, ...content);
  made.classList.add("wide");
  return made;
}

function rounds() {
  const seconds = (name) => (row) => (row.size_before === null ? "–" : duration(row.round[name]));
  const columnsOfTable = [
    ["round", (row) => number(row.round.round), "number"],
    ["time", (row) => clock(row.time)],
    [course.unit(), (row) => number(row.round.step), "number"],
    ["workers", (row) => (row.size_before === null ? `${row.round.world_size}` : `${row.size_before} → ${row.round.world_size}`)],
    ["reason", (row) => row.round.reason],
    ["stalled", seconds("stall_s"), "number"],
    ["noticed", seconds("noticed_s"), "number"],
    ["re-formed", seconds("entered_s"), "number"],
    ["in sync", seconds("synced_s"), "number"],
    [`${course.unit()}s lost`, (row) => number(row.round.steps_lost), "number"],
  ];
  return wide("Resets", element("div", { className: "scroll" }, table(columnsOfTable, course.rounds())));
}

function epochs() {
  const found = course.curves.epochs;
  const every = new Set(["loss", "val_loss", ...found.flatMap((epoch) => Object.keys(epoch.values))]);
  const names = [...every].filter((name) => found.some((epoch) => name in epoch.values)).slice(0, 12);
  const columnsOfTable = [
    ["epoch", (row) => number(row.epoch === undefined ? null : row.epoch + 1), "number"],
    ["time", (row) => clock(row.time)],
    ["step", (row) => number(row.step), "number"],
    ...names.map((name) => [name, (row) => number(row.values[name]), "number"]),
  ];
  return wide("Epochs", element("div", { className: "scroll" }, table(columnsOfTable, found)));
}

function configuration() {
  const values = { "job directory": shown.job_dir, "hvd_elastic_keras": shown.version };
  if (shown.job) Object.assign(values, { model: shown.job.model || "a script", workers: shown.job.num_workers, ...shown.job.training });
  const given = shown.what_is_trained?.config;
  if (given && Object.keys(given).length) values.config = given;
  const text = (value) => (value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
  const columnsOfTable = [
    ["name", ([name]) => name],
    ["value", ([, value]) => text(value)],
  ];
  return wide("Configuration", element("div", { className: "scroll" }, table(columnsOfTable, Object.entries(values))));
}

function drawAll() {
  const place = element("div", { className: "cards" });
  document.getElementById("main").append(overview(), place);
  charts(place);
  if (Object.keys(spent()).length) place.append(wide("What the time was spent on", ...goodput(spent())));
  place.append(rounds());
  if (course.curves.epochs.length) place.append(epochs());
  place.append(configuration());
}

drawHead();
drawAll();
