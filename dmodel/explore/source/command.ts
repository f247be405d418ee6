/** The same question for a shell. */

import type { Data } from "./catalog";
import { asked, FACTORS, type State } from "./state";

const OPTIONS: [string, string][] = [
  ["system", "--system"], ["accelerator", "--chip"], ["n_accel", "--devices"], ["model", "--model"], ["seq_len", "--seq-len"],
  ["global_batch", "--global-batch"], ["precision", "--precision"], ["stack", "--stack"],
  ["micro_batch", "--micro-batch"], ["tp", "--tp"], ["pp", "--pp"], ["cp", "--cp"], ["ep", "--ep"],
  ["interleave", "--interleave"], ["zero_stage", "--zero"], ["shard", "--shard"],
  ["recompute", "--recompute"], ["offload", "--offload"], ["tokens", "--tokens"],
];
const quoted = (text: string) => (/^[\w./:@%+-]+$/.test(text) ? text : `'${text.replace(/'/g, "'\\''")}'`);

/** What a stack's plans can be written for; "" where for nothing. */
function emits(data: Data, families: string[]): string {
  for (const family of families) {
    const file = data.stacks[family];
    const found = file && (file.emits || emits(data, file.extends));
    if (found) return found;
  }
  return "";
}

type Machine = (name: string) => number;

function options(state: State, keys: (key: string) => boolean): string[] {
  return OPTIONS.filter(([key]) => keys(key)).flatMap(([key, option]) => {
    const text = key === "model" && state.own ? "config.json" : (state[key] ?? "").trim();
    return text ? [option, quoted(text)] : [];
  });
}

/** `dmodel predict` of a state; numbers of the machine that are changed as settings. */
function command(state: State, profile: string, machine: Machine): string {
  const found = ["dmodel", "predict", "--profile", quoted(profile), ...options(state, () => true)];
  if (state.sp) found.push(state.sp === "1" ? "--sp" : "--no-sp");
  if (state.reshard) found.push(state.reshard === "1" ? "--reshard" : "--no-reshard");
  for (const [name, value] of Object.entries(asked(state, machine).settings))
    if (FACTORS.includes(name)) found.push("--set", `${name}=${value}`);
  return found.join(" ");
}

const JOB = ["system", "accelerator", "n_accel", "model", "seq_len", "global_batch", "precision", "stack"];

/** Commands of a state: the same answer, its launch settings, and those of the best layout of its job. */
export function commands(data: Data, state: State, profile: string, family: string, machine: Machine): string {
  const target = emits(data, family ? [family] : []) || "json", same = command(state, profile, machine);
  const job = options(state, (key) => JOB.includes(key));
  const best = ["dmodel", "design", "--profile", quoted(profile), ...job, "--emit", target].join(" ");
  return [same, "", "# launch settings of this plan", `${same} --emit ${target}`, "",
    "# launch settings of the best layout", best].join("\n");
}
