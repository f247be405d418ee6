/** What a layer does again in the backward pass (dmodel/recomputation.py). */

import { InputError, type Table } from "./catalog";
import type { Question } from "./resolve";

const RESULTS = ["qkv", "core", "out", "up", "down"];
const PRODUCTS = ["qkv", "out", "up", "down"];
const CHOICES = ["recompute_layers", "recompute_keeps", "recompute_modules"];
const OFFLOADS = ["offload", "offload_inputs", "offload_results"];

export type Again = Table<number>;

const NOTHING: Again = Object.fromEntries(
  ("layers attention queries_values keys latents out into gate back dense experts norms " +
    "activation narrow streams last_kept inputs others").split(" ").map((name) => [name, 0]),
);

function byPolicy(keeps: string[], experts: number): Again {
  const [qkv, core, out, up, down] = RESULTS.map((part) => Number(!keeps.includes(part)));
  return {
    ...NOTHING, attention: core, queries_values: qkv, keys: qkv, latents: qkv, out,
    into: up, gate: up, back: down * Number(experts > 1), streams: 1,
  };
}

function byOperator(experts: number): Again {
  const mixture = Number(experts > 1);
  return {
    ...NOTHING, keys: 1, out: 1, into: mixture, gate: 1, back: mixture, streams: 1,
    last_kept: 1 - mixture,
  };
}

function ofModules(names: string[], experts: number, modules: Table<Table<number>>): Again {
  const there = names.filter((n) => n in modules && (experts > 1 || !n.startsWith("moe")));
  return Object.assign({}, NOTHING, ...there.map((name) => modules[name]));
}

function bySetting(name: string, value: unknown, experts: number, modules: Table<Table<number>>) {
  if (name === "recompute_layers") return { ...NOTHING, layers: Number(value) };
  const listed = (Array.isArray(value) ? value : [value]) as string[];
  const parts = listed.filter((part) => part !== "nothing");
  return name === "recompute_keeps" ? byPolicy(parts, experts) : ofModules(parts, experts, modules);
}

function isEmpty(value: unknown) {
  return !value || (Array.isArray(value) && !value.length);
}

function chosen(
  question: Question, settings: Table<unknown>, experts: number, modules: Table<Table<number>>,
): [Again, boolean] {
  const kind = question.text("recompute"), whole = kind === "none" || kind === "full";
  const given = CHOICES.filter((name) => name in question.settings);
  if (given.length && given.length + Number(whole) > 1)
    throw new InputError(`${[kind, ...given]}: these say different things; say one of them`);
  if (whole) return [{ ...NOTHING, layers: Number(kind === "full") }, false];
  const column = kind && !("recompute_policy" in question.settings);
  const name = given[0] ?? (column ? "" : (CHOICES.find((n) => !isEmpty(settings[n])) ?? ""));
  if (name) {
    const found = bySetting(name, settings[name], experts, modules);
    return [found, name !== "recompute_layers" || found.layers > 0];
  }
  const way = kind === "selective" ? String(settings.selective ?? "core") : "nothing";
  if (way === "operator") return [byOperator(experts), true];
  if (way === "products") return [byPolicy(PRODUCTS, experts), true];
  return [{ ...NOTHING, attention: Number(way === "core") }, false];
}

/** What is done again, and whether that is said by policies, so that no rule decides it. */
export function again(
  question: Question, settings: Table<unknown>, experts: number, modules: Table<Table<number>>,
): [Again, boolean] {
  const [found, said] = chosen(question, settings, experts, modules);
  const own = OFFLOADS.some((name) => name in question.settings) ? question.settings : settings;
  const both = Number(own.offload ?? 0);
  const shares = {
    narrow: Number(settings.narrow_activations ?? 0),
    inputs: Number(own.offload_inputs ?? both), others: Number(own.offload_results ?? both),
  };
  return [{ ...found, ...shares }, said];
}

/** Whether a rule decides what is recomputed: neither the question nor its stack say. */
export function isOpen(question: Question, values: Table<unknown>, said: boolean): boolean {
  const told = question.text("recompute") || values.recompute || values.composed;
  return !(told || CHOICES.some((name) => name in values) || said);
}
