/** The answer as tables and bars, beside the kept one where there is one. */

import { type Answer, elasticities } from "./answer";
import type { Table } from "./catalog";
import type { Ends } from "./doubt";
import { type Cell, element, node, type Piece, type Stack, stacks, swatch, table, tornado } from "./draw";
import type { Neighbour } from "./published";
import type { Found, Result } from "./search";
import { compact, DAY, GIB, percent, plain, short, signed, sizeName } from "./words";

/** An answer with what is shown of it. */
export interface Shown {
  found: Answer; ends: Table<Ends> | null; tokens: number; measured: number | null;
}

const of = ({ found }: Shown, name: string) => found.values[`outputs.${name}`];
const ends = (low: number, high: number, text: (x: number) => string) => ` (${text(low)} to ${text(high)})`;

function lines(shown: Shown, side: number): [string, string][] {
  const { found, tokens, measured } = shown, { hbm_bytes: room, flops_per_s: peak } = found.case.cluster.chip;
  const time = of(shown, "step_time_s"), rate = of(shown, "tokens_per_s"), mfu = of(shown, "mfu");
  const range = shown.ends?.step_time_s, spill = -of(shown, "headroom_bytes");
  const wide = Math.exp(side * found.spread), memory = of(shown, "memory_bytes");
  const scaled = (low: number, high: number, x: number, text: (x: number) => string) =>
    (range ? ends(x * low, x * high, text) : "");
  const [low, high] = range ? [range.low / time, range.high / time] : [1, 1];
  const rows: [string, string][] = [
    ["Step time", `${short(time, 4)} s${scaled(low, high, time, short)}`],
    ["Tokens per second", `${short(rate)} (${short(of(shown, "tokens_per_s_per_device"))} a device)`],
    ["MFU", `${percent(mfu)}${scaled(1 / high, 1 / low, mfu, (x) => percent(x, 0))} of ${short(peak / 1e12)} TFLOP/s`],
    ["Memory of a device", `${short(memory / GIB)} GiB${shown.ends ? ends(memory / wide / GIB, (memory * wide) / GIB, short) : ""}; ` +
      `${spill <= 0 ? "fits" : "does not fit"} ${short(room / GIB)} GiB`],
    ["Risk of running out", percent(found.values.oom_probability)],
    ["Power of a device", `${short(of(shown, "device_watts"))} W`],
  ];
  if (tokens) {
    const days = tokens / rate / DAY, dollars = tokens * of(shown, "dollars_per_token");
    rows.push([`${compact.format(tokens)} tokens`, `${short(days)} days${scaled(low, high, days, short)}, ` +
      `$${compact.format(dollars)} of rent`]);
  }
  if (found.recompute) rows.push(["Recomputation, the least at a usual risk", found.recompute]);
  if (measured !== null) {
    const gap = measured - time, ratio = measured / time;
    const inside = range ? (measured >= range.low && measured <= range.high ? "; inside the 90 % interval"
      : "; outside of the 90 % interval") : "";
    rows.push(["Measured", `${short(measured, 4)} s: ${short(ratio)} × predicted, ` +
      `${signed(gap, short(Math.abs(gap)))} s${inside}`]);
  }
  return rows;
}

export function summary(now: Shown, kept: Shown | null, side: number): Piece[] {
  const rows = new Map<string, string[]>();
  for (const [name, text] of lines(now, side)) rows.set(name, [text]);
  if (kept) {
    for (const row of rows.values()) row.push("");
    for (const [name, text] of lines(kept, side)) rows.set(name, [rows.get(name)?.[0] ?? "", text]);
  }
  const cells = [...rows].map(([name, texts]) => [name, ...texts]);
  const head = kept ? ["", "now", "kept"] : ["", ""];
  const found: Piece[] = [table("Summary", head, cells, "answers")];
  if (kept) {
    const gap = of(now, "step_time_s") / of(kept, "step_time_s") - 1;
    const rent = of(now, "dollars_per_token") / of(kept, "dollars_per_token") - 1;
    const a = of(now, "tokens_per_s") / of(kept, "tokens_per_s") - 1;
    found.push(element("p", `Against the kept one: step time ${signed(gap, percent(Math.abs(gap)))}, ` +
      `tokens per second ${signed(a, percent(Math.abs(a)))}, rent a token ${signed(rent, percent(Math.abs(rent)))}.`));
  }
  if (now.ends)
    found.push(element("p", "In brackets: 90 % of such runs, by the profile's covariance at sigma points.", "note"));
  return found;
}

interface Part { key: string; color: number; now: number; kept: number }

function parts(group: string, now: Shown, kept: Shown | null): Part[] {
  const names = Object.keys(now.found.values).filter((name) => name.startsWith(`${group}.`));
  const all = names.map((name, color) => ({
    key: plain(name.slice(group.length + 1)), color, now: now.found.values[name],
    kept: kept ? kept.found.values[name] : 0,
  }));
  const most = Math.max(...all.map((x) => Math.max(x.now, x.kept)));
  return all.filter((x) => Math.max(x.now, x.kept) > 1e-4 * most).sort((a, b) => b.now - a.now);
}

function breakdown(group: string, title: string, now: Shown, kept: Shown | null, unit: number, name: string,
  mark: number | undefined, whole: string, marked: string): Piece[] {
  const found = parts(group, now, kept), sum = (side: "now" | "kept") => found.reduce((a, x) => a + x[side], 0);
  const most = Math.max(sum("now"), sum("kept"), mark ?? 0);
  const bar = (label: string, side: "now" | "kept"): Stack => ({
    label, segments: found.map((x) => ({ name: `${x.key}: ${short(x[side] / unit)} ${name}`, value: x[side], color: x.color })),
    ...(mark !== undefined ? { mark } : {}),
  });
  const bars = kept ? [bar("now", "now"), bar("kept", "kept")] : [bar("now", "now")];
  const row = (x: { key: string; color?: number; now: number; kept: number }): Cell[] => {
    const head = node("span", {}, ...(x.color === undefined ? [] : [swatch(x.color)]), x.key);
    const cells: Cell[] = [head, `${short(x.now / unit)} ${name}`, percent(x.now / sum("now"))];
    if (kept) cells.push(`${short(x.kept / unit)} ${name}`, signed(x.now - x.kept, `${short(Math.abs(x.now - x.kept) / unit)} ${name}`));
    return cells;
  };
  const head = ["", "now", "share", ...(kept ? ["kept", "difference"] : [])];
  const total = { key: whole, now: sum("now"), kept: sum("kept") };
  const label = `${title}: ${found.map((x) => `${x.key} ${percent(x.now / sum("now"))}`).join(", ")}`;
  const list = table(title, head, [...found.map(row), row(total)], "figures", [], [stacks(bars, most, label)]);
  if (mark === undefined) return [list];
  return [list, element("p", marked, "note")];
}

export function times(now: Shown, kept: Shown | null): Piece[] {
  const { measured } = now;
  return breakdown("time", "Step time by cause", now, kept, 1, "s", measured ?? undefined, "step",
    "The upright line: what was measured.");
}

export function memories(now: Shown, kept: Shown | null): Piece[] {
  const room = now.found.case.cluster.chip.hbm_bytes;
  return breakdown("memory", "Memory of the fullest device by purpose", now, kept, GIB, "GiB", room, "sum",
    `The upright line: the device's ${short(room / GIB)} GiB.`);
}

const SIZES = 14;

export function slopes(now: Shown): Piece {
  const rows = elasticities(now.found, "step_time_s").slice(0, SIZES).map(([name, value]) => (
    { name: sizeName(name), value, text: signed(value, `${Math.abs(value).toFixed(3)} %`) }));
  return tornado(rows, "Step time for 1 % more of a size");
}

/** A plan in a few words. */
export function label(found: Found): string {
  const p = found.layout;
  const parts = ["tp", "cp", "ep", "pp", "dp"].filter((n) => p[n] !== 1 || n === "tp" || n === "dp").map((n) => `${n} ${p[n]}`);
  if (p.interleave !== 1) parts.push(`v ${p.interleave}`);
  if (p.pp !== 1 && !["1f1b", "interleaved"].includes(found.schedule)) parts.push(found.schedule);
  parts.push(`b ${p.micro_batch}`, `zero ${p.zero}`);
  if (p.zero && p.shard !== p.dp) parts.push(`shard ${p.shard}`);
  if (p.zero === 3 && !p.reshard) parts.push("weights kept for the backward pass");
  if (p.recompute_attention) parts.push("recompute selective");
  else if (p.recompute_layers) parts.push(`recompute ${p.recompute_layers === 1 ? "full" : `${p.recompute_layers.toFixed(2)} of the layers`}`);
  return parts.join(" · ");
}

export function plans(result: Result, use: (found: Found) => void): Piece {
  const of = result.plans.length ? result.plans : result.closest ? [result.closest] : [];
  const rows = of.map((found): Cell[] => {
    const button = { ...node("button", { type: "button", "aria-label": `Use ${label(found)}` }, "Use"), press: () => use(found) };
    return [label(found), `${short(found.seconds, 4)} s`, percent(found.mfu), `${short(found.bytes / GIB)} GiB`,
      percent(found.risk), button];
  });
  const title = result.plans.length ? "The fastest that fit" : "No layout fits; the nearest";
  return table(title, ["layout", "step", "MFU", "memory", "risk", ""], rows, "figures plans", [5]);
}

export function near(rows: Neighbour[]): Piece[] {
  if (!rows.length) return [element("p", "No published run on chips of this generation.", "note")];
  const cells = rows.map((row): Cell[] => [
    `${row.model}, ${row.devices} × ${row.accelerator}`, row.stack, row.layout, `${short(row.seconds)} s`,
    short(row.rate), row.mfu === null ? "" : percent(row.mfu), `${row.source} (${row.url})`]);
  return [table("Nearest published runs", ["run", "stack", "layout", "step", "tokens/s a device", "MFU", "source"],
    cells, "figures sources", [1, 2, 6])];
}
