/** What the page's controls say, and the link that holds it. */

import type { Table, Value } from "./catalog";
import type { Found } from "./search";

export const FORMAT = "2";
export const TEXTS = ["model", "accelerator", "stack", "precision", "recompute"];
const SYSTEM = "system";
export const NUMBERS = [
  "n_accel", "tp", "pp", "cp", "ep", "interleave", "micro_batch", "zero_stage", "shard", "sp",
  "global_batch", "seq_len",
];
/** Settings of the layout that no column holds. */
export const SETTINGS = ["reshard", "offload"];
export const FACTORS = ["peak", "bandwidth.memory", "bandwidth.intra", "bandwidth.inter"];
/** What is asked of the answer, not of the model. */
export const VIEWS = ["tokens", "measured", "unit", "axis", "shown"];
export type State = Table<string>;

export const FIRST: State = {
  model: "llama-3-405b", accelerator: "H100-80GB", stack: "", precision: "bf16",
  recompute: "", n_accel: "16384", tp: "8", pp: "16", cp: "1", ep: "", interleave: "8",
  micro_batch: "1", zero_stage: "", global_batch: "2048", seq_len: "8192", tokens: "15.6e12",
};

export const PRESETS: Table<State> = {
  "Llama 3 405B on 16,384 H100": FIRST,
  "DeepSeek-V3 on 2,048 H800": {
    ...FIRST, model: "deepseek-v3", accelerator: "H800", n_accel: "2048", tp: "1", pp: "16",
    interleave: "", ep: "64", precision: "fp8", global_batch: "15360", seq_len: "4096", tokens: "14.8e12",
  },
  "GPT-3 on 1,024 A100": {
    ...FIRST, model: "gpt-3-175b", accelerator: "A100-80GB", n_accel: "1024",
    stack: "megatron-2021", interleave: "6", recompute: "full", global_batch: "1536", seq_len: "2048", tokens: "300e9",
  },
};

export const CONTROLS = [SYSTEM, ...TEXTS, ...NUMBERS, ...SETTINGS, ...VIEWS];
const ASKED = [SYSTEM, ...TEXTS, ...NUMBERS, ...SETTINGS, ...FACTORS];
const KEYS = [...ASKED, ...VIEWS];
const PIN = "pin.", OWN = "own", LONGEST = 80, LONGEST_MODEL = 20000;

/** What a page shows: its state, and the one that is kept beside it, if any. */
export interface Both { state: State; pinned: State | null }

export function toHash(both: Both, profile: string): string {
  const { state, pinned } = both;
  const pairs = KEYS.filter((key) => state[key]).map((key) => [key, state[key]]);
  if (state[OWN]) pairs.push([OWN, state[OWN]]);
  if (pinned) {
    pairs.push(["pin", "1"]);
    for (const key of [...ASKED, OWN]) if (pinned[key]) pairs.push([PIN + key, pinned[key]]);
  }
  return new URLSearchParams([["v", FORMAT], ["profile", profile], ...pairs]).toString();
}

/** The state of a link, and what of it this page does not have; null where it holds none. */
export function fromHash(hash: string, profile: string): [Both, string] | null {
  const found = new URLSearchParams(hash.replace(/^#/, ""));
  if (!found.has("v")) return null;
  const read = (prefix: string): State => {
    const pairs = KEYS.map((key) => [key, (found.get(prefix + key) ?? "").slice(0, LONGEST)]);
    return { ...Object.fromEntries(pairs), [OWN]: (found.get(prefix + OWN) ?? "").slice(0, LONGEST_MODEL) };
  };
  const both = { state: read(""), pinned: found.get("pin") === "1" ? read(PIN) : null };
  if (found.get("v") !== FORMAT) return [both, "The link is of another version of this page."];
  const of = found.get("profile");
  return [both, !of || of === profile ? "" : "The link is of another profile: its numbers differ."];
}

/** Columns and settings that a state asks; factors stand for numbers of the machine. */
export function asked(state: State, machine: (name: string) => number) {
  const columns: Table<number | string> = {}, settings: Table<Value> = {};
  for (const key of TEXTS) if (state[key]) columns[key] = state[key].trim();
  if (columns.recompute && Number.isFinite(Number(columns.recompute))) {
    settings.recompute_layers = Number(columns.recompute);
    delete columns.recompute;
  }
  for (const key of NUMBERS) if (state[key]) columns[key] = Number(state[key]);
  for (const key of SETTINGS) if (state[key]) settings[key] = Number(state[key]);
  for (const key of FACTORS) {
    const factor = Number(state[key] || 1);
    if (factor !== 1) settings[key] = factor * machine(key);
  }
  return { columns, settings, system: (state[SYSTEM] ?? "").trim() };
}

/** The job of a state without a layout, as a search takes it. */
export function withoutLayout(state: State): State {
  const found = { ...state };
  for (const key of ["tp", "pp", "cp", "ep", "interleave", "micro_batch", "zero_stage", "shard", "sp",
    "recompute", ...SETTINGS]) found[key] = "";
  return found;
}

/** The layout of a plan that a search found, as controls say it. */
export function layoutOf(found: Found): State {
  const of = found.layout, text = (name: string) => String(of[name]);
  const again = of.recompute_layers;
  return {
    tp: text("tp"), pp: text("pp"), cp: text("cp"), ep: text("ep"), interleave: text("interleave"),
    micro_batch: text("micro_batch"), zero_stage: text("zero"),
    shard: of.zero > 0 ? text("shard") : "", sp: text("sp"), offload: "0",
    reshard: of.zero === 3 ? text("reshard") : "",
    recompute: of.recompute_attention ? "selective" : again === 0 ? "none" : again === 1 ? "full" : String(again),
  };
}

const LEAST: Table<number> = { zero_stage: 0, sp: 0 };
const MOST: Table<number> = { zero_stage: 3, sp: 1 };

/** Why a state cannot be asked; "" where it can. */
export function wrong(state: State): string {
  for (const key of NUMBERS) {
    const value = Number(state[key] || 1), least = LEAST[key] ?? 1, most = MOST[key] ?? 1e8;
    if (!Number.isInteger(value) || value < least || value > most)
      return `${key}: expected a whole number from ${least} to ${most}; got '${state[key]}'`;
  }
  const again = state.recompute ?? "";
  if (again && !["none", "selective", "full"].includes(again) && !isShare(again))
    return `recompute: expected none, selective, full or a share from 0 to 1; got '${again}'`;
  for (const key of SETTINGS)
    if (state[key] && !isShare(state[key])) return `${key}: expected 0 to 1; got '${state[key]}'`;
  for (const key of ["tokens", "measured"])
    if (state[key] && !(Number(state[key]) > 0 && Number(state[key]) < Infinity))
      return `${key}: expected a number above 0; got '${state[key]}'`;
  return "";
}

const isShare = (text: string) => Number(text) >= 0 && Number(text) <= 1;
