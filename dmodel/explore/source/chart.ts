/** Points of the chart: an output over a size. */

import type { Answer, Model } from "./answer";
import { InputError, type Table } from "./catalog";
import type { Curve } from "./draw";
import type { Neighbour } from "./published";
import { FACTORS, type State } from "./state";
import { GIB, plain, short } from "./words";

type Asked = (of: State) => Answer;
type Output = (values: Table<number>) => number;

const OUTPUTS: Table<[string, Output]> = {
  "": ["step time [s]", (v) => v["outputs.step_time_s"]],
  rate: ["tokens/s a device", (v) => v["outputs.tokens_per_s_per_device"]],
  memory: ["memory [GiB]", (v) => v["outputs.memory_bytes"] / GIB],
};
/** Where a program gives the slope of step time in a bandwidth of a network of some levels. */
const slopeOf = (axis: string, levels: number): string | undefined => ({
  "bandwidth.memory": "step_time_s.cluster.chip.hbm_bytes_per_s",
  "bandwidth.intra": "step_time_s.cluster.network.bytes_per_s.0",
  "bandwidth.inter": `step_time_s.cluster.network.bytes_per_s.${levels - 1}`,
})[axis];
const USUAL = "bandwidth.inter";

/** A curve through a state. `unit`: the machine's own number of a factor. */
function through(state: State, found: Answer, axis: string, of: Output, model: Model, asked: Asked,
  unit: (name: string) => number): [number, number][] {
  const factor = FACTORS.includes(axis), here = Number(state[axis] || 1);
  const points: [number, number][] = [];
  for (let k = -12; k <= 12; k++) {
    const value = factor ? here * 2 ** (k / 6) : here * 2 ** (k / 4);
    if (!factor && (value < 1 || !Number.isInteger(value))) continue;
    try {
      points.push([value, of(factor ? model.withBandwidth(found, axis, value * unit(axis))
        : asked({ ...state, [axis]: String(value) }).values)]);
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
    }
  }
  return points;
}

const KEPT = new WeakMap<Answer, [string, [number, number][]]>();

/** The curve through a kept answer; it stays while what is shown does. */
function keptCurve(found: Answer, shown: string, anew: () => [number, number][]): [number, number][] {
  let known = KEPT.get(found);
  if (known?.[0] !== shown) KEPT.set(found, (known = [shown, anew()]));
  return known[1];
}

export interface Beside { ends: [number, number] | null; measured: number | null; near: Neighbour[] }

export function chart(
  state: State, found: Answer, kept: { state: State; found: Answer } | null, beside: Beside, model: Model,
  asked: Asked, unit: (of: State) => (name: string) => number,
): [Curve, string] {
  const axis = state.axis || USUAL, shown = OUTPUTS[state.shown ?? ""] ? (state.shown ?? "") : "";
  const [title, of] = OUTPUTS[shown], factor = FACTORS.includes(axis);
  const here = Number(state[axis] || 1), now = of(found.values);
  const path = shown === "" ? slopeOf(axis, found.case.cluster.network.size.length) : undefined;
  const tokens = found.case.plan.global_batch * (found.case.model.seq_len as unknown as number);
  const scaled = (seconds: number, devices: number) =>
    shown === "rate" ? tokens / seconds / devices : seconds;
  const devices = Number(state.n_accel), timed = shown !== "memory";
  const others = timed && !factor ? beside.near.map((row) => {
    const at = row.numbers[axis] ?? here, many = axis === "n_accel" ? row.devices : devices;
    const whole = axis === "global_batch" ? (tokens / found.case.plan.global_batch) * at
      : axis === "seq_len" ? (tokens / (found.case.model.seq_len as unknown as number)) * at : tokens;
    const y = shown === "rate" ? row.rate : whole / row.rate / many;
    return { x: at, y, title: `${row.model}, ${row.devices} × ${row.accelerator}, ${row.source}: ${short(row.rate)} tokens/s a device` };
  }) : [];
  const drawn: Curve = {
    points: through(state, found, axis, of, model, asked, unit(state)), here: [here, now],
    slope: path && path in found.values ? found.values[path] * unit(state)(axis) * here : null,
    x: plain(axis) + (factor ? " (times the machine's)" : ""), y: title, others,
    pinned: kept ? keptCurve(kept.found, `${axis} ${shown}`,
      () => through(kept.state, kept.found, axis, of, model, asked, unit(kept.state))) : [],
  };
  if (beside.measured !== null && timed) drawn.measured = scaled(beside.measured, devices);
  if (beside.ends && timed) {
    const [low, high] = beside.ends.map((x) => scaled(x, devices));
    drawn.ends = [Math.min(low, high), Math.max(low, high)];
  }
  const said = [`${title}; the dot is this run at ${short(now)}`];
  if (drawn.ends) said.push("the bar its 90 % interval");
  if (drawn.slope !== null) said.push("short dashes the derivative");
  if (drawn.measured !== undefined) said.push("the cross what was measured");
  if (others.length) said.push("rings the published runs below, at their rate per device");
  if (drawn.pinned.length) said.push("long dashes the kept run");
  return [drawn, `${said.join(", ")}.`];
}
