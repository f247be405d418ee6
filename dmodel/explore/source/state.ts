/** What the page's controls say, and the link that holds it. */

import type { Table, Value } from "./catalog";

export const FORMAT = "1";
export const TEXTS = ["model", "accelerator", "stack", "precision", "recompute"];
export const NUMBERS = [
  "n_accel", "tp", "pp", "cp", "ep", "interleave", "micro_batch", "zero_stage", "global_batch",
  "seq_len",
];
export const FACTORS = ["peak", "bandwidth.memory", "bandwidth.intra", "bandwidth.inter"];
export type State = Table<string>;

export const FIRST: State = {
  model: "llama-3-405b", accelerator: "H100-80GB", stack: "megatron-lm", precision: "bf16",
  recompute: "", n_accel: "16384", tp: "8", pp: "16", cp: "1", ep: "", interleave: "",
  micro_batch: "1", zero_stage: "", global_batch: "2048", seq_len: "8192", tokens: "15.6e12",
};

export const PRESETS: Table<State> = {
  "Llama 3 405B on 16,384 H100": FIRST,
  "DeepSeek-V3 on 2,048 H800": {
    ...FIRST, model: "deepseek-v3", accelerator: "H800", n_accel: "2048", tp: "1", pp: "16",
    ep: "64", precision: "fp8", global_batch: "15360", seq_len: "4096", tokens: "14.8e12",
  },
  "GPT-3 on 1,024 A100": {
    ...FIRST, model: "gpt-3-175b", accelerator: "A100-80GB", n_accel: "1024", tp: "8", pp: "8",
    global_batch: "1536", seq_len: "2048", tokens: "300e9",
  },
};

const KEYS = [...TEXTS, ...NUMBERS, ...FACTORS, "tokens"];

export function toHash(state: State, profile: string): string {
  const pairs = KEYS.filter((key) => state[key]).map((key) => [key, state[key]]);
  return new URLSearchParams([["v", FORMAT], ["profile", profile], ...pairs]).toString();
}

/** The state of a link, and what of it this page does not have; null where it holds none. */
export function fromHash(hash: string, profile: string): [State, string] | null {
  const found = new URLSearchParams(hash.replace(/^#/, ""));
  if (!found.has("v")) return null;
  const state: State = {};
  for (const key of KEYS) state[key] = (found.get(key) ?? "").slice(0, 80);
  if (found.get("v") !== FORMAT) return [state, "The link is of another version of this page."];
  const of = found.get("profile");
  return [state, of === profile ? "" : "The link is of another profile: its numbers differ."];
}

/** Columns and settings that a state asks; factors stand for numbers of the machine. */
export function asked(state: State, machine: (name: string) => number) {
  const columns: Table<number | string> = {}, settings: Table<Value> = {};
  for (const key of TEXTS) if (state[key]) columns[key] = state[key].trim();
  for (const key of NUMBERS) if (state[key]) columns[key] = Number(state[key]);
  for (const key of FACTORS) {
    const factor = Number(state[key] || 1);
    if (factor !== 1) settings[key] = factor * machine(key);
  }
  return { columns, settings };
}

/** Why a state cannot be asked; "" where it can. */
export function wrong(state: State): string {
  for (const key of NUMBERS) {
    const value = Number(state[key] || 1), least = key === "zero_stage" ? 0 : 1;
    if (!Number.isInteger(value) || value < least || value > 1e8)
      return `${key}: expected a whole number from ${least} on; got '${state[key]}'`;
  }
  if (Number(state.zero_stage || 0) > 3) return "zero_stage: expected 0 to 3";
  return Number(state.tokens || 1) > 0 ? "" : `tokens: expected a number; got '${state.tokens}'`;
}
