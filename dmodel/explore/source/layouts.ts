/** Rules of software that take arithmetic: dmodel/layouts.py and dmodel/stages.py, written twice. */

import { InputError, type Rule, type Rules, type Table } from "./catalog";
import type { Words } from "./facts";

const number = (words: Words, name: string) => Number(words[name]);

export const RULES: Table<(words: Words, of: Rule) => number | null> = {
  at_most_dp: (words, of) => Math.min(Number(of.ranks), number(words, "dp")),
  share_of_layers: (words, of) => Math.min(Number(of.layers) / number(words, "n_layers"), 1),
  share_of_stage: (words, of) => Math.min(Number(of.layers) / number(words, "stage_layers"), 1),
  one_layer_chunks(words, of) {
    const layers = number(words, "stage_layers"), most = Number(of.at_most ?? 0);
    if (number(words, "pp") <= 1 || layers !== Math.trunc(layers)) return null;
    return most && layers % most === 0 ? most : layers;
  },
  bytes_of_gradients: (words, of) => Number(of.count) * number(words, "reduce_bytes"),
  padded_to_busiest: (words) =>
    0.5 * (1 + Math.max(number(words, "n_experts") / number(words, "top_k"), 1)),
  whole_words_a_rank: (words, of) =>
    Math.floor(Number(of.vocabulary) / number(words, "tp")) * number(words, "tp"),
  words_a_rank_not_of_8: (words, of) =>
    Number(Math.floor(Number(of.vocabulary) / number(words, "tp")) % 8 > 0),
};

export interface Kinds { order: number[]; costs: number[]; further: number }
export interface Pipeline {
  layers: number; head: number; pp: number; interleave: number; further: number;
  kinds: Kinds | null; fold: string;
}
interface Stages { fullest: number; last: number; chunks: number[]; head: number }

const ENDS = 2;

/** What stages hold: layers of the fullest one, and of the one with the head. */
export function held(of: Omit<Pipeline, "head" | "kinds" | "fold">): [number, number] {
  const { layers, pp, interleave: v, further } = of;
  const each = Math.floor((layers + ENDS) / (pp * v)), over = layers + ENDS - each * pp * v;
  const rounds = Math.floor(over / pp), more = over - rounds * pp;
  const items = each * v + rounds, alike = layers % (pp * v) === 0;
  const between = pp > 2 ? items + Number(more > 1) : 0;
  const most = alike ? layers / pp : Math.max(items + Number(more > 0) - 1, between);
  const last = (alike ? layers / pp : items - 1) + further;
  return [Math.max(most, last), last];
}

/** Layers that are over, or missing, for stages that a search offers (dmodel/stages.py). */
export function shortBy(layers: number, pp: number, interleave: number): number {
  const chunks = pp * interleave, items = layers + ENDS, over = layers % chunks;
  const missing = Math.max((chunks - 1) * Math.ceil(items / chunks) + 1 - items, 0);
  const last = held({ layers, pp, interleave, further: 0 })[1];
  const apart = Math.min(over, missing + Math.max(1 - last, 0));
  return (layers % pp === 0 ? over : apart) + Math.max(pp - layers, 0);
}

function chunkLayers(layers: number, pp: number, interleave: number): number[] {
  const chunks = Math.trunc(pp * interleave);
  if (layers % chunks === 0) return Array(chunks).fill(layers / chunks);
  const each = Math.floor((layers + ENDS) / chunks), over = layers + ENDS - each * chunks;
  const items = Array.from({ length: chunks }, (_, k) => each + Number(k < over));
  items[0] -= 1;
  items[chunks - 1] -= 1;
  return items;
}

function counted(of: Pipeline): Stages {
  const [fullest, last] = held(of);
  return { fullest, last, chunks: chunkLayers(of.layers, of.pp, of.interleave), head: -1 };
}

function blocksByCost(layers: number, head: number, pp: number): [number[], number] {
  const blocks = Array(pp).fill(0), share = (layers + head) / pp;
  let at = 0;
  for (let placed = 1; placed <= layers; placed++) {
    blocks[at] += 1;
    if (placed > share * (at + 1)) at += 1;
  }
  return [blocks, at];
}

function byCost(of: Pipeline): Stages {
  const [blocks, at] = blocksByCost(Math.trunc(of.layers), of.head, Math.trunc(of.pp));
  return { fullest: Math.max(...blocks), last: blocks[at] + of.further, chunks: blocks, head: at };
}

function fullButLast(of: Pipeline): Stages {
  const chunks = of.pp * of.interleave, chunk = Math.ceil((of.layers + 2) / chunks);
  const full = chunk * of.interleave, first = Number(chunk === 2);
  const left = of.layers - (full - first) - (of.pp - 2) * full;
  if (of.layers % chunks === 0 || left < 0) return counted(of);
  const inner = Math.max(left - (of.interleave - 1) * chunk, 0);
  const laid = [chunk - first, ...Array(Math.trunc(chunks) - 2).fill(chunk), inner];
  return { fullest: full, last: left + of.further, chunks: laid, head: -1 };
}

const STAGES: Table<(of: Pipeline) => Stages> = {
  counted, by_cost: byCost, full_but_last: fullButLast,
};

function asWritten(written: number[], of: Pipeline): Stages {
  const v = Math.trunc(of.interleave), chunks: number[] = [];
  for (let k = 0; k < v; k++)
    for (const n of of.fold === "v" && k % 2 ? [...written].reverse() : written) chunks.push(Math.floor((n + v - 1 - k) / v));
  const last = written[written.length - 1] + of.further;
  return { fullest: Math.max(...written), last, chunks, head: -1 };
}

function loads(kinds: Kinds, chunks: number[]): number[] {
  let layer = 0, end = 0;
  const taken = [0];
  for (const kind of kinds.order) taken.push(taken[taken.length - 1] + kinds.costs[kind]);
  return chunks.map((chunk, k) => {
    end += chunk;
    const stop = Math.round(end);
    let each = taken[stop] - taken[layer];
    if (k === chunks.length - 1) each += kinds.further;
    layer = stop;
    return each;
  });
}

function rankOf(chunk: number, pp: number, fold: string): number {
  const turn = Math.floor(chunk / pp), place = chunk - turn * pp;
  return fold === "v" && turn % 2 ? pp - 1 - place : place;
}

/** What ranks hold of what chunks in order do; of two copies of the model the mean of both. */
function onRanks(each: number[], pp: number, fold: string): number[] {
  const found: number[] = Array(pp).fill(0);
  each.forEach((x, k) => { found[rankOf(k, pp, fold)] += x; });
  return fold === "both" ? found.map((x, i) => (x + found[pp - 1 - i]) / 2) : found;
}

/** Whether a schedule runs on so many ranks with so many micro-batches. */
export const allows = (of: Rules, pp: number, batches: number) =>
  pp % of.multiple === 0 && batches >= of.fill * pp && batches % of.pairs === 0;

/** Layers of the fullest stage beyond the mean, and how many fewer the one with the head holds. */
export function stages(way: string, of: Pipeline, written: number[]): [number, number] {
  if (of.pp <= 1) return [0, 0];
  if (!(way in STAGES)) throw new InputError(`stages: expected one of ${Object.keys(STAGES)}`);
  let found = written.length ? asWritten(written, of) : STAGES[way](of);
  if (Math.min(0, ...found.chunks) < 0)
    throw new InputError(`interleave: ${of.pp * of.interleave} chunks are more than the `
      + `${of.layers} layers with embedding and head; take fewer chunks per stage`);
  const total = found.chunks.reduce((a, b) => a + b, 0), count = found.chunks.length;
  const pp = Math.trunc(of.pp), unlike = of.kinds !== null && total === of.layers;
  if (unlike || of.fold !== "loop") {
    const plain = found.chunks.map((x, k) => (k === count - 1 ? x + of.further : x));
    const each = onRanks(unlike ? loads(of.kinds!, found.chunks) : plain, pp, of.fold);
    const head = found.head < 0 ? rankOf(count - 1, pp, of.fold) : found.head;
    found = { ...found, fullest: Math.max(...each), last: each[head] };
  }
  const fullest = Math.max(found.fullest, found.last);
  return [fullest - (of.layers + of.further) / of.pp, fullest - found.last];
}

export const LAYER = 1.05;
export const headCost = (width: number, inner: number, vocab: number) =>
  vocab / (LAYER * (4 * width + 3 * inner));
