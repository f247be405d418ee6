/** Programs of one structure of models, and the records that they read. */

import type { Table } from "./catalog";
import type { Built } from "./models";

export type Run = (inputs: Float64Array, outputs: Float64Array) => void;
export interface Program { inputs: string[]; outputs: string[]; first: number; run: [Run, Run] }
export interface Programs { evaluated: Program; resolving: Program }
export type Plan = { global_batch: number; [record: string]: number | Table<number> };
export interface Cluster {
  chip: Table<number>; network: Table<number[]>; devices: number;
}
export interface Case {
  cluster: Cluster; model: Built["model"]; plan: Plan;
  coefficients: Table<number>; footprint: Table<number>;
}

type Tree = { [key: string]: unknown };

const KEYS = new WeakMap<Program, string[][]>();

/** Numbers of records in the order in which a program reads them. */
export function inputs(program: Program, records: unknown): Float64Array {
  let paths = KEYS.get(program);
  if (!paths) KEYS.set(program, (paths = program.inputs.map((path) => path.split("."))));
  const found = new Float64Array(paths.length);
  for (let i = 0; i < paths.length; i++) {
    let value = records;
    for (const key of paths[i]) value = (value as Tree)[key];
    found[i] = value as number;
  }
  return found;
}

/** Outputs of a program by their paths. */
export function outputs(program: Program, records: unknown, all: boolean): Table<number> {
  const y = new Float64Array(program.outputs.length);
  program.run[all ? 1 : 0](inputs(program, records), y);
  const found: Table<number> = {}, count = all ? y.length : program.first;
  for (let i = 0; i < count; i++) found[program.outputs[i]] = y[i];
  return found;
}

/** A plan from flat names; `homes` says which record has each. */
export function planOf(leaves: Table<number>, homes: Table<string>): Plan {
  const mix: Table<number> = {}, layout = { mix } as unknown as Table<number>;
  const plan: Plan = { global_batch: leaves.global_batch, layout, precision: {}, software: {} };
  for (const [name, value] of Object.entries(leaves))
    if (homes[name] === "layout.mix") mix[name] = value;
    else if (homes[name] !== "plan") (plan[homes[name]] as Table<number>)[name] = value;
  return plan;
}
