/** The machine of a question (dmodel/machine.py, dmodel/catalog/systems.py). */

import { type Catalog, type Host, InputError, type Table } from "./catalog";
import type { Cluster } from "./programs";
import type { Question } from "./resolve";

const LARGEST_HOST = 16, TORUS_HOST = 8;
const NUMBERS = ["size", "bytes_per_s", "latency_s", "torus_axes", "in_network_reduction"];

/** Precision of products on a chip unless told: of the usual ones the first that it has. */
export function usualPrecision(catalog: Catalog, name: string): string {
  const main = catalog.known("chips", name), { usual } = catalog.data;
  const rates = main === undefined ? {} : catalog.data.chips[main].rates;
  return usual.find((each) => each in rates) ?? Object.keys(rates)[0] ?? usual[0];
}

/** Precision of a question's products, without its variant. */
export const precisionOf = (catalog: Catalog, question: Question): string =>
  question.precision || usualPrecision(catalog, question.text("accelerator"));

/** The host of a system, else of a chip, else of its generation (dmodel/catalog/hosts.py). */
function hostOf(catalog: Catalog, chip: string, system = ""): Host {
  const { hosts, chips } = catalog.data, { like, generation } = chips[chip];
  return hosts[[system, chip, like ?? "", generation].find((each) => each in hosts) ?? "default"];
}

/** Its rates as a device sees them, where so many of its devices run. */
const hosted = (of: Host, running: number): Table<number> => ({
  host_bytes_per_s: of.link,
  host_memory_bytes_per_s: of.memory / Math.max(Math.min(running, of.devices), 1),
});

export function chipOf(catalog: Catalog, name: string, precision: string): Table<number> {
  const main = catalog.resolved("chips", name), { rates, numbers } = catalog.data.chips[main];
  if (!(precision in rates))
    throw new InputError(`${main} has no ${precision} products; it has ${Object.keys(rates)}`);
  const half = usualPrecision(catalog, main);
  const host = hosted(hostOf(catalog, main), Infinity);
  return { ...numbers, ...host, flops_per_s: rates[precision], attention_flops_per_s: rates[half] };
}

/** Levels of the network of a system that is named, else those of every chip's own. */
export function levelsOf(catalog: Catalog, system: string): number {
  return system ? catalog.data.systems[catalog.resolved("systems", system)].levels.length : 2;
}

function networkOf(catalog: Catalog, main: string): Table<number[]> {
  const { levels } = catalog.data.systems[main];
  return Object.fromEntries(NUMBERS.map((name) => [name, levels.map((level) => level[name])]));
}

function sliced(network: Table<number[]>, chips: number): Table<number[]> {
  const axes = Math.trunc(network.torus_axes[0]), doublings = Math.round(Math.log2(chips));
  const shape = Array.from({ length: axes }, (_, i) => 2 ** Math.floor((doublings + i) / axes));
  const period = axes === 3 ? 4 : 16;
  const used = shape.filter((s) => s > 1).map((s) => (s % period === 0 ? 1 : 0.5));
  const sum = used.reduce((a, b) => a + b, 0);
  const rate = [...network.bytes_per_s], torus = [...network.torus_axes];
  torus[0] = Math.max(used.length, 1);
  rate[0] *= Math.max(sum, 0.5) / axes;
  return { ...network, size: [chips, Infinity], bytes_per_s: rate, torus_axes: torus };
}

function ofDomain(network: Table<number[]>, domain: number | null): Table<number[]> {
  const pod = network.size[0], chips = domain ?? pod;
  if (network.size.length !== 2)
    throw new InputError(`a network of ${network.size.length} levels is taken whole here; leave out devices of a domain`);
  if (!(chips >= 1) || chips === Infinity)
    throw new InputError(`domain_size: expected devices, from 1 on; got ${chips}`);
  if (network.torus_axes[0] > 1 && chips < pod && Number.isInteger(Math.log2(chips)))
    return sliced(network, chips);
  return { ...network, size: [chips, Infinity] };
}

function hostSize(host: number, network: Table<number[]>): number | null {
  const size = network.size[0], torus = network.torus_axes[0] > 1;
  return size > LARGEST_HOST || torus || host >= size ? null : host;
}

function domainOf(question: Question, host: number | null, network: Table<number[]>) {
  const given = question.number("domain_size"), devices = question.need("n_accel");
  const torus = network.torus_axes[0] > 1;
  const isHost = torus && given !== null && given <= TORUS_HOST && given < devices;
  if (given && !(given === host && isHost)) return given;
  if (torus)
    return Math.min(host && host > TORUS_HOST ? host : devices, devices, network.size[0]);
  return host ? hostSize(host, network) : null;
}

function changed(catalog: Catalog, cluster: Cluster, settings: Table<unknown>): Cluster {
  const chip = { ...cluster.chip }, network = { ...cluster.network };
  for (const [name, { part, leaf }] of Object.entries(catalog.data.quantities)) {
    if (!(name in settings)) continue;
    const value = Number(settings[name]) / (leaf === "price_per_s" ? 3600 : 1);
    if (part !== "chip") {
      const levels = network.size.length;
      if (part === "inter" && levels !== 2)
        throw new InputError(`${name}: the network has ${levels} levels, and this is the outer one of two; ` +
          "say it in a file: `dmodel catalog systems NAME --toml` prints a start");
      network[leaf] = [...network[leaf]];
      network[leaf][part === "intra" ? 0 : 1] = value;
    } else {
      const alike = leaf === "flops_per_s" && chip.flops_per_s === chip.attention_flops_per_s;
      chip[leaf] = value;
      if (alike) chip.attention_flops_per_s = value;
    }
  }
  return { ...cluster, chip, network };
}

/** Chip and network: the question's own system, else the one that stack or chip imply. */
export function machine(catalog: Catalog, question: Question, values: Table<unknown>): Cluster {
  const accelerator = question.text("accelerator");
  const named = question.system || String(values.system ?? "");
  const own = catalog.data.chips[catalog.resolved("chips", accelerator)].system;
  const system = named || own;
  if (!system) throw new InputError(`${accelerator}: no default system; name one`);
  const base = networkOf(catalog, catalog.resolved("systems", system));
  const host = (values.accel_per_node as number | undefined) ?? question.number("accel_per_node");
  let network = base;
  if (question.system) {
    const size = question.number("domain_size") || (host ? hostSize(host, base) : null);
    if (size) network = ofDomain(base, size);
  } else network = ofDomain(base, domainOf(question, host, ofDomain(base, null)));
  const running = Math.min(question.need("n_accel"), host || LARGEST_HOST, LARGEST_HOST);
  const main = catalog.resolved("chips", accelerator);
  const of = hostOf(catalog, main, named && catalog.resolved("systems", named));
  const chip = { ...chipOf(catalog, accelerator, precisionOf(catalog, question)), ...hosted(of, running) };
  return changed(catalog, { chip, network, devices: 0 }, question.settings);
}
