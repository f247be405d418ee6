/** What the model says of a question: the records, the profile's coefficients, the programs. */

import { Catalog, type Data, type Fact, InputError, type Table } from "./catalog";
import { type Built, structure } from "./models";
import { coefficients, footprintOf, members, type Profile } from "./profile";
import { type Case, outputs, type Programs } from "./programs";
import { type Question, type Resolved, Resolver } from "./resolve";

export interface Answer {
  values: Table<number>; case: Case; facts: Fact[]; recompute: string; structure: string;
  spread: number; question: Question; built: Built;
}
/** Records with the profile's coefficients, and the spread of memory of their stack. */
export interface Whole { case: Case; spread: number }

/** Answers questions by the programs at hand. */
export class Model {
  readonly catalog: Catalog;
  readonly resolver: Resolver;

  constructor(
    data: Data, readonly profile: Profile, readonly programsOf: (name: string) => Programs,
  ) {
    this.catalog = new Catalog(data);
    const usual = {
      coefficients: coefficients(profile, {}), footprint: profile.least.footprint,
    };
    this.resolver = new Resolver(this.catalog, programsOf, usual);
  }

  /** Records of a question, and with the coefficients of its chip and stack. */
  records(question: Question, never = false): { found: Resolved; whole: Whole } {
    const stack = question.text("stack"), of = stack ? this.catalog.stack(stack) : null;
    const fitted = footprintOf(this.profile, of ? of.basis : "", of ? of.variant : "");
    const share = Math.exp(fitted.spread * this.catalog.data.search.deviations);
    const found = this.resolver.resolve(question, never ? null : { footprint: fitted.footprint, share });
    const groups = members(this.catalog, question.text("accelerator"), stack);
    const coefficient = coefficients(this.profile, groups);
    const whole = { ...found.case, coefficients: coefficient, footprint: fitted.footprint };
    return { found, whole: { case: whole, spread: fitted.spread } };
  }

  /** Throws InputError where the question has no answer. */
  answer(question: Question, slopes: boolean): Answer {
    const { found, whole: { case: whole, spread } } = this.records(question);
    const kinds = structure(found.built, whole.cluster.network.size.length);
    const program = this.programsOf(kinds).evaluated;
    const values = outputs(program, { case: whole, spread }, slopes);
    const time = values["outputs.step_time_s"], memory = values["outputs.memory_bytes"];
    if (!(time > 0 && time < Infinity && memory > 0) || values.least_utilization > 1)
      throw new InputError("no machine does what is asked: some value is out of range");
    const { layout } = whole.plan as unknown as { layout: Table<number> };
    const recompute = found.open ? said(layout) : "";
    const { facts } = found;
    const asked = found.question;
    return { values, case: whole, facts, recompute, structure: kinds, spread, question: asked, built: found.built };
  }

  /** Outputs of an answer's case with another bandwidth, which no rule asks for. */
  withBandwidth(found: Answer, name: string, value: number): Table<number> {
    const { part, leaf } = this.catalog.data.quantities[name], { cluster } = found.case;
    const level = part === "intra" ? 0 : cluster.network.size.length - 1;
    const network = { ...cluster.network }, chip = { ...cluster.chip };
    if (part === "chip") chip[leaf] = value;
    else network[leaf] = network[leaf].map((x, i) => (i === level ? value : x));
    const changed: Case = { ...found.case, cluster: { ...cluster, chip, network } };
    const program = this.programsOf(found.structure).evaluated;
    return outputs(program, { case: changed, spread: found.spread }, false);
  }
}

function said(layout: Table<number>): string {
  if (layout.recompute_layers === 1) return "full";
  if (layout.recompute_layers > 0) return `${(100 * layout.recompute_layers).toFixed(0)} % of layers`;
  return layout.recompute_attention > 0 ? "selective" : "none";
}

/** The elasticities of an output: what it changes by, in percent, for one percent of each size. */
export function elasticities(found: Answer, of: string): [string, number][] {
  const whole = found.values[`outputs.${of}`], rows: [string, number][] = [];
  for (const [name, slope] of Object.entries(found.values)) {
    if (!name.startsWith(`${of}.`)) continue;
    const path = name.slice(of.length + 1);
    let value: unknown = found.case;
    for (const key of path.split(".")) value = (value as Table<unknown>)[key];
    const each = (slope * (value as number)) / whole;
    if (Number.isFinite(each) && Math.abs(each) > 1e-4) rows.push([path, each]);
  }
  return rows.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
}
