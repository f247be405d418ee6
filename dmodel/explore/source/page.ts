/** The page: controls, the answer, and its pictures. */

import { type Answer, elasticities, Model } from "./answer";
import { type Data, InputError, type Table } from "./catalog";
import { bars, curve, element, type Row } from "./draw";
import { chipOf } from "./machine";
import type { Profile } from "./profile";
import type { Program, Programs } from "./programs";
import { asked, FACTORS, FIRST, fromHash, NUMBERS, PRESETS, type State, TEXTS, toHash, wrong } from "./state";

type Texts = Table<Omit<Program, "run">>;
interface Given { data: Data; profile: Profile; programs: Table<Texts>; packed: Table<string>; id: string }
declare global { interface Window { dmodelPrograms: Table<Table<Program["run"]>>; dmodelAnswer: unknown } }

const read = (id: string) => document.getElementById(id)!;
const infinite = (_: string, value: unknown) => (value === "inf" ? Infinity : value);
const given: Given = JSON.parse(read("given").textContent!, infinite);
window.dmodelPrograms = {};

async function unpacked(text: string): Promise<string> {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

/** Loads the programs of a structure as a script of its own: the page allows no evaluation. */
async function load(name: string): Promise<void> {
  if (name in window.dmodelPrograms || !(name in given.packed)) return;
  const url = URL.createObjectURL(new Blob([await unpacked(given.packed[name])], { type: "text/javascript" }));
  await new Promise<void>((done, failed) => {
    const script = document.createElement("script");
    script.src = url;
    script.onload = () => done();
    script.onerror = () => failed(new Error(`programs of ${name} do not load`));
    document.head.append(script);
  });
  URL.revokeObjectURL(url);
}

class Missing extends Error {}

const made = new Map<string, Programs>();
const programs = (name: string): Programs => {
  if (!(name in given.programs))
    throw new InputError("models with these kinds of layers are not on this page; ask `dmodel predict`");
  if (!(name in window.dmodelPrograms)) throw new Missing(name);
  if (!made.has(name)) {
    const run = window.dmodelPrograms[name];
    const pairs = Object.entries(given.programs[name]).map(([key, one]) => [key, { ...one, run: run[key] }]);
    made.set(name, Object.fromEntries(pairs) as Programs);
  }
  return made.get(name)!;
};

const model = new Model(given.data, given.profile, programs);
let state: State = { ...FIRST };

const short = (value: number, digits = 3) => Number(value.toPrecision(digits)).toLocaleString("en");
const GIB = 2 ** 30, DAY = 86400;

function machineNumber(of: State): (name: string) => number {
  return (name) => {
    const { part, leaf } = given.data.quantities[name];
    if (part === "chip") return chipOf(model.catalog, of.accelerator, of.precision || "bf16")[leaf];
    const chip = given.data.chips[model.catalog.resolved("chips", of.accelerator)];
    const levels = given.data.systems[chip.system!].levels;
    return levels[part === "intra" ? 0 : 1][leaf];
  };
}

function answered(of: State, slopes: boolean): Answer {
  const problem = wrong(of);
  if (problem) throw new InputError(problem);
  const { columns, settings } = asked(of, machineNumber(of));
  return model.answer(columns, settings, slopes);
}

const WORDS: Table<string> = {
  step_time_s: "Step time", n_accel: "devices", global_batch: "global batch", seq_len: "sequence length",
  peak: "peak rate", "bandwidth.memory": "memory bandwidth", "bandwidth.intra": "inner bandwidth",
  "bandwidth.inter": "outer bandwidth",
};
const plain = (name: string) => WORDS[name] ?? name.replace(/_bytes$/, "").replace(/_/g, " ");
/** A size by its path, without the records around it. */
const sizeName = (path: string) =>
  path.replace(/^(cluster\.(chip|network)|plan\.(layout|precision|software)|plan|model|coefficients)\./, "")
    .replace(/^(mixers|feeds)\.(\d+)\.(.*)/, (_, side, i, name) =>
      `${name}${i === "0" ? "" : ` (${side === "mixers" ? "mixer" : "feed"} ${Number(i) + 1})`}`)
    .replace(/\.(\d+)$/, (_, i) => ` of level ${Number(i) + 1}`).replace(/_/g, " ");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

function rowsOf(found: Answer, group: string, text: (value: number) => string): Row[] {
  const rows = Object.entries(found.values).filter(([name]) => name.startsWith(`${group}.`))
    .map(([name, value]) => ({ name: plain(name.slice(group.length + 1)), value, text: text(value) }));
  const most = Math.max(...rows.map((row) => row.value));
  return rows.filter((row) => row.value > 1e-4 * most).sort((a, b) => b.value - a.value);
}

function summary(found: Answer): [string, string][] {
  const of = (name: string) => found.values[`outputs.${name}`];
  const rate = of("tokens_per_s"), tokens = Number(state.tokens || 0), device = found.case.cluster.chip.hbm_bytes;
  const spill = -of("headroom_bytes");
  const fits = spill <= 0 ? `fits ${short(device / GIB)} GiB` : `does not fit ${short(device / GIB)} GiB`;
  const rows: [string, string][] = [
    ["Step time", `${short(of("step_time_s"), 4)} s`],
    ["Tokens per second", `${short(rate)} (${short(of("tokens_per_s_per_device"))} a device)`],
    ["MFU", `${(100 * of("mfu")).toFixed(1)} % of ${short(found.case.cluster.chip.flops_per_s / 1e12)} TFLOP/s`],
    ["Memory of a device", `${short(of("memory_bytes") / GIB)} GiB; ${fits}`],
    ["Risk that memory is not enough", `${(100 * found.values.oom_probability).toFixed(1)} %`],
    ["Power of a device", `${short(of("device_watts"))} W`],
  ];
  if (tokens)
    rows.push([`${compact.format(tokens)} tokens`, `${short(tokens / rate / DAY)} days, ` +
      `$${compact.format(tokens * of("dollars_per_token"))} of rent`]);
  if (found.recompute) rows.push(["Recomputation, the least that fits", found.recompute]);
  return rows;
}

const SLOPES: Table<string> = {
  "bandwidth.memory": "step_time_s.cluster.chip.hbm_bytes_per_s",
  "bandwidth.intra": "step_time_s.cluster.network.bytes_per_s.0",
  "bandwidth.inter": "step_time_s.cluster.network.bytes_per_s.1",
};

function overAxis(found: Answer): void {
  const axis = (read("axis") as HTMLSelectElement).value, factor = FACTORS.includes(axis);
  const here = Number(state[axis] || 1), points: [number, number][] = [];
  const unit = factor ? machineNumber(state)(axis) : 1;
  for (let k = -12; k <= 12; k++) {
    const value = factor ? here * 2 ** (k / 6) : here * 2 ** (k / 4);
    if (!factor && (value < 1 || !Number.isInteger(value))) continue;
    try {
      points.push([value, factor
        ? model.withBandwidth(found, axis, value * unit)
        : answered({ ...state, [axis]: String(value) }, false).values["outputs.step_time_s"]]);
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
    }
  }
  const now = found.values["outputs.step_time_s"], path = SLOPES[axis];
  const slope = path ? found.values[path] * unit * here : null;
  const x = plain(axis) + (factor ? " (times the machine's)" : "");
  const chart = curve({ points, here: [here, now], slope, x, y: "Step time [s]" });
  read("curve").replaceChildren(chart);
}

function show(found: Answer): void {
  const list = read("summary");
  list.replaceChildren(...summary(found).flatMap(([name, text]) => [element("dt", name), element("dd", text)]));
  const time = found.values["outputs.step_time_s"];
  const times = rowsOf(found, "time", (x) => `${short(x)} s, ${((100 * x) / time).toFixed(1)} %`);
  read("time").replaceChildren(bars(times, times[0].value, "Step time by cause"));
  const memory = rowsOf(found, "memory", (x) => `${short(x / GIB)} GiB`);
  read("memory").replaceChildren(bars(memory, memory[0].value, "Memory by purpose"));
  const slopes = elasticities(found, "step_time_s").slice(0, 14)
    .map(([name, value]) => ({ name: sizeName(name), value, text: `${value > 0 ? "+" : "−"}${Math.abs(value).toFixed(3)} %` }));
  const most = Math.max(...slopes.map((row) => Math.abs(row.value)));
  read("slopes").replaceChildren(bars(slopes, most, "Step time for 1 % more of each size"));
  overAxis(found);
  read("facts").replaceChildren(...found.facts.map((fact) =>
    element("li", `${fact.says} (${fact.source}, ${fact.date})`)));
}

let drawn = 0;
async function update(): Promise<void> {
  const turn = ++drawn, start = performance.now();
  history.replaceState(null, "", `#${toHash(state, given.id)}`);
  for (;;) {
    try {
      const found = answered(state, true);
      if (turn !== drawn) return;
      read("error").textContent = "";
      read("answer").classList.remove("stale");
      show(found);
      window.dmodelAnswer = { ...found, milliseconds: performance.now() - start };
      return;
    } catch (error) {
      if (error instanceof Missing) {
        await load(error.message);
        continue;
      }
      if (!(error instanceof InputError)) throw error;
      read("error").textContent = error.message;
      read("answer").classList.add("stale");
      window.dmodelAnswer = { error: error.message };
      return;
    }
  }
}

function fill(): void {
  for (const key of [...TEXTS, ...NUMBERS, "tokens"]) (read(key) as HTMLInputElement).value = state[key] ?? "";
  for (const key of FACTORS) {
    (read(key) as HTMLInputElement).value = String(Math.log2(Number(state[key] || 1)));
    read(`${key}-text`).textContent = `${short(Number(state[key] || 1))} ×`;
  }
}

function start(): void {
  const options = (id: string, names: string[]) =>
    read(id).replaceChildren(...names.map((name) => Object.assign(document.createElement("option"), { value: name })));
  options("models", Object.keys(given.data.models));
  options("chips", Object.keys(given.data.chips));
  options("stacks", Object.values(given.data.stacks).filter((f) => !f.id.startsWith("_"))
    .flatMap((f) => [f.id, ...f.members.filter((m) => !m.endsWith("*"))]));
  for (const key of [...TEXTS, ...NUMBERS, "tokens"])
    read(key).addEventListener("input", (event) => {
      state[key] = (event.target as HTMLInputElement).value;
      void update();
    });
  for (const key of FACTORS)
    read(key).addEventListener("input", (event) => {
      const factor = 2 ** Number((event.target as HTMLInputElement).value);
      state[key] = factor === 1 ? "" : String(factor);
      read(`${key}-text`).textContent = `${short(factor)} ×`;
      void update();
    });
  read("axis").addEventListener("change", () => void update());
  for (const [name, preset] of Object.entries(PRESETS)) {
    const button = element("button", name) as HTMLButtonElement;
    button.type = "button";
    button.addEventListener("click", () => set({ ...preset }));
    read("presets").append(button);
  }
  read("reset").addEventListener("click", () => set({ ...FIRST }));
  window.addEventListener("hashchange", restore);
  restore();
}

function set(next: State): void {
  state = next;
  fill();
  void update();
}

function restore(): void {
  const found = fromHash(location.hash, given.id);
  read("notice").textContent = found ? found[1] : "";
  set(found ? found[0] : { ...FIRST });
}

start();
