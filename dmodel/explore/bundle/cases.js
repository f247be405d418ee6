var __defProp = Object.defineProperty;
var __getOwnPropDesc = Object.getOwnPropertyDescriptor;
var __getOwnPropNames = Object.getOwnPropertyNames;
var __hasOwnProp = Object.prototype.hasOwnProperty;
var __export = (target, all) => {
  for (var name in all)
    __defProp(target, name, { get: all[name], enumerable: true });
};
var __copyProps = (to, from, except, desc) => {
  if (from && typeof from === "object" || typeof from === "function") {
    for (let key of __getOwnPropNames(from))
      if (!__hasOwnProp.call(to, key) && key !== except)
        __defProp(to, key, { get: () => from[key], enumerable: !(desc = __getOwnPropDesc(from, key)) || desc.enumerable });
  }
  return to;
};
var __toCommonJS = (mod) => __copyProps(__defProp({}, "__esModule", { value: true }), mod);

// cases.ts
var cases_exports = {};
__export(cases_exports, {
  answers: () => answers,
  infinite: () => infinite
});
module.exports = __toCommonJS(cases_exports);

// catalog.ts
var InputError = class extends Error {
};
var fold = (name) => name.replace(/[\s_-]+/g, "").toLowerCase();
var MAKERS = /^((NVIDIA|AMD|Instinct|Tesla|GeForce|Quadro|Intel(\(R\))?|Habana|AWS|Google)[\s_-]+)+/i;
var OF_HUBS = /[-_\s](hf|base|instruct|chat|it|pt|v\d+(\.\d+)*)$/i;
var TUNED = /[-_\s]+(sft|lora)$/i;
var CUT = /[-_\s]+(\d+)[-_\s]?layers?$/i;
function remembered(of) {
  const found = /* @__PURE__ */ new Map();
  return (...words) => {
    const key = words.join("\n");
    if (!found.has(key)) {
      if (found.size > 5e3) found.clear();
      found.set(key, of(...words));
    }
    return found.get(key);
  };
}
var Catalog = class {
  constructor(data) {
    this.data = data;
    for (const kind of ["chips", "systems", "models"]) {
      const of = /* @__PURE__ */ new Map();
      for (const [name, entry] of Object.entries(data[kind]))
        for (const each of [name, ...entry.aliases]) of.set(fold(each), name);
      this.spellings.set(kind, of);
    }
    for (const file of Object.values(data.stacks)) {
      const own2 = file.id.startsWith("_") ? [] : [[file.id, file.id]];
      for (const each of file.members) {
        if (each.endsWith("*")) this.patterns.push([each.slice(0, -1), file.id]);
        else own2.push([each, each]);
      }
      for (const each of file.aliases) own2.push([each, file.id]);
      for (const [spelling, family] of own2)
        this.families.set(fold(spelling), [family, file.id]);
    }
    this.patterns.sort((a, b) => b[0].length - a[0].length);
  }
  data;
  spellings = /* @__PURE__ */ new Map();
  families = /* @__PURE__ */ new Map();
  patterns = [];
  known = remembered((kind, name) => this.knownAnew(kind, name));
  stack = remembered((name) => this.stackAnew(name));
  identify = remembered((name) => this.identifyAnew(name));
  knownAnew(kind, name) {
    const of = this.spellings.get(kind);
    const bare = kind === "chips" ? name.trim().replace(MAKERS, "") : name;
    return of.get(fold(name)) ?? of.get(fold(bare));
  }
  canonical(kind, name) {
    return this.known(kind, name) ?? name.trim().replace(/[\s_]+/g, "-").toLowerCase();
  }
  resolved(kind, name) {
    const found = this.known(kind, name);
    if (found === void 0) throw new InputError(`unknown ${kind.slice(0, -1)} '${name}'`);
    return found;
  }
  knownAs(chip) {
    const main = this.canonical("chips", chip);
    return this.data.chips[main]?.like ?? main;
  }
  generation(chip) {
    const main = this.known("chips", chip);
    return main === void 0 ? "" : this.data.chips[main].generation;
  }
  cut(name) {
    const found = CUT.exec(name.trim());
    return found ? [name.trim().slice(0, found.index), Number(found[1])] : [name, null];
  }
  knownModel(name) {
    const own2 = this.cut(name)[0].trim().split("/").pop();
    const tried = [name, own2, own2.replace(/^meta[-_\s]/i, "")];
    for (; ; ) {
      const shorter = tried[tried.length - 1].replace(OF_HUBS, "");
      if (shorter === tried[tried.length - 1]) break;
      tried.push(shorter);
    }
    for (const each of tried) {
      const found = this.known("models", each);
      if (found !== void 0) return found;
    }
    return void 0;
  }
  /** Canonical id of a model, and how its name says that it is tuned. */
  identifyAnew(name) {
    const ending = TUNED.exec(name.trim());
    const base = ending ? name.trim().slice(0, ending.index) : name;
    const id = this.knownModel(base) ?? this.canonical("models", base);
    return [id, ending ? ending[1].toLowerCase() : "none"];
  }
  knownFamily(name) {
    const low2 = name.trim().toLowerCase();
    const found = this.patterns.find(([start]) => low2.startsWith(start));
    return this.families.get(fold(name)) ?? (found && [low2, found[1]]);
  }
  chain(file) {
    const inherited = file.extends.flatMap((name) => {
      const parent = this.data.stacks[name] ?? this.data.stacks[this.knownFamily(name.split("/")[0])?.[1] ?? ""];
      return parent ? this.chain(parent) : [];
    });
    return [...inherited, ...file.fact];
  }
  /** Family, variant, release and facts of a stack. */
  stackAnew(name) {
    const at = name.indexOf("/");
    const family = (at < 0 ? name : name.slice(0, at)).trim();
    const variant = at < 0 ? "" : name.slice(at + 1).trim();
    const found = this.knownFamily(family);
    const every = this.data.stacks._every.fact;
    const file = found && this.data.stacks[found[1]];
    return {
      basis: found ? found[0] : family,
      variant,
      release: variant ? this.release(variant) : NEWEST,
      facts: file ? [...every, ...this.chain(file)] : every
    };
  }
  release(text) {
    if (this.data.heads.includes(text.toLowerCase())) return NEWEST;
    const found = /^v?(\d+(?:\.\d+)+)/.exec(text);
    return found ? found[1].split(".").map(Number) : null;
  }
};
var NEWEST = [1e6];

// programs.ts
var KEYS = /* @__PURE__ */ new WeakMap();
function inputs(program, records) {
  let paths = KEYS.get(program);
  if (!paths) KEYS.set(program, paths = program.inputs.map((path) => path.split(".")));
  const found = new Float64Array(paths.length);
  for (let i = 0; i < paths.length; i++) {
    let value2 = records;
    for (const key of paths[i]) value2 = value2[key];
    found[i] = value2;
  }
  return found;
}
function outputs(program, records, all) {
  const y = new Float64Array(program.outputs.length);
  program.run[all ? 1 : 0](inputs(program, records), y);
  const found = {}, count = all ? y.length : program.first;
  for (let i = 0; i < count; i++) found[program.outputs[i]] = y[i];
  return found;
}
function planOf(leaves, homes) {
  const plan = { global_batch: leaves.global_batch, layout: {}, precision: {}, software: {} };
  for (const [name, value2] of Object.entries(leaves))
    if (homes[name] !== "plan") plan[homes[name]][name] = value2;
  return plan;
}

// facts.ts
var RANGE = /^(>=|<=|>|<)\s*(.+)$/;
var isNumber = (value2) => typeof value2 === "number";
var isRange = (value2) => typeof value2 === "string" && RANGE.test(value2);
var low = (value2) => typeof value2 === "string" ? value2.toLowerCase() : void 0;
var isRule = (value2) => typeof value2 === "object" && value2 !== null && "rule" in value2;
function order(a, b) {
  for (let i = 0; i < Math.min(a.length, b.length); i++) if (a[i] !== b[i]) return a[i] - b[i];
  return a.length - b.length;
}
var KEEPS = {
  ">=": (gap) => gap >= 0,
  "<=": (gap) => gap <= 0,
  ">": (gap) => gap > 0,
  "<": (gap) => gap < 0
};
var Facts = class {
  constructor(catalog) {
    this.catalog = catalog;
  }
  catalog;
  kindOf(name, wanted) {
    const known = this.catalog.data.conditions[name];
    if (known !== void 0) return known;
    const first = Array.isArray(wanted) && wanted.length ? wanted[0] : wanted;
    return isNumber(first) || isRange(first) ? "number" : "word";
  }
  holds(wanted, kind, value2) {
    if (Array.isArray(wanted)) {
      const not = wanted.length > 0 && wanted.every((each) => String(each).startsWith("!"));
      const holds = (each) => this.holds(each, kind, value2);
      return not ? wanted.every(holds) : wanted.some(holds);
    }
    if (typeof wanted === "boolean") return Boolean(value2) === wanted;
    if (isNumber(wanted)) return isNumber(value2) && value2 === wanted;
    return this.ofText(String(wanted), kind, value2);
  }
  ofText(wanted, kind, value2) {
    if (wanted === "") return value2 === void 0 || value2 === null || value2 === "";
    if (wanted.startsWith("!")) return !this.holds(wanted.slice(1), kind, value2);
    if (isRange(wanted)) return wanted.split(",").every((part) => this.inside(part, kind, value2));
    if (kind === "release") {
      const exact = this.catalog.release(wanted);
      return Array.isArray(value2) && exact !== null && order(value2, exact) === 0;
    }
    if (wanted.endsWith("*"))
      return low(value2)?.startsWith(wanted.slice(0, -1).toLowerCase()) ?? false;
    const named = kind === "models" || kind === "chips";
    const name = named ? this.catalog.canonical(kind, wanted) : wanted;
    return low(value2) === name.toLowerCase();
  }
  inside(bound, kind, value2) {
    const [, compare, edge] = RANGE.exec(bound.trim());
    if (kind !== "release") return isNumber(value2) && KEEPS[compare](value2 - Number(edge));
    const release = /^\d+$/.test(edge) ? [Number(edge)] : this.catalog.release(edge);
    return Array.isArray(value2) && release !== null && KEEPS[compare](order(value2, release));
  }
  /** Facts in order; the last that holds decides a name. */
  apply(facts, words, given) {
    let known = words;
    const values = {}, by = /* @__PURE__ */ new Map(), held2 = [];
    for (const fact of facts) {
      const when = Object.entries(fact.when ?? {});
      if (!when.every(([n, w]) => this.holds(w, this.kindOf(n, w), known[n]))) continue;
      held2.push(fact);
      const open = Object.entries(fact.set ?? {}).filter(([name]) => !given.has(name));
      for (const [name, value2] of [...open, ...Object.entries(fact.means ?? {})]) {
        values[name] = typeof value2 === "boolean" ? Number(value2) : value2;
        by.set(name, fact);
      }
      known = { ...words, ...values };
    }
    const decided = new Set(by.values());
    return { values, facts: held2.filter((fact) => decided.has(fact)) };
  }
};

// layouts.ts
var number = (words, name) => Number(words[name]);
var RULES = {
  at_most_dp: (words, of) => Math.min(Number(of.ranks), number(words, "dp")),
  share_of_layers: (words, of) => Math.min(Number(of.layers) / number(words, "n_layers"), 1),
  share_of_stage: (words, of) => Math.min(Number(of.layers) / number(words, "stage_layers"), 1),
  one_layer_chunks(words, of) {
    const layers2 = number(words, "stage_layers"), most = Number(of.at_most ?? 0);
    if (number(words, "pp") <= 1 || layers2 !== Math.trunc(layers2)) return null;
    return most && layers2 % most === 0 ? most : layers2;
  },
  bytes_of_gradients: (words, of) => Number(of.count) * number(words, "reduce_bytes"),
  padded_to_busiest: (words) => 0.5 * (1 + Math.max(number(words, "n_experts") / number(words, "top_k"), 1)),
  whole_words_a_rank: (words, of) => Math.floor(Number(of.vocabulary) / number(words, "tp")) * number(words, "tp"),
  words_a_rank_not_of_8: (words, of) => Number(Math.floor(Number(of.vocabulary) / number(words, "tp")) % 8 > 0)
};
var ENDS = 2;
function held(of) {
  const { layers: layers2, pp, interleave: v, further } = of;
  const each = Math.floor((layers2 + ENDS) / (pp * v)), over = layers2 + ENDS - each * pp * v;
  const rounds = Math.floor(over / pp), more = over - rounds * pp;
  const items = each * v + rounds, alike = layers2 % (pp * v) === 0;
  const between = pp > 2 ? items + Number(more > 1) : 0;
  const most = alike ? layers2 / pp : Math.max(items + Number(more > 0) - 1, between);
  const last = (alike ? layers2 / pp : items - 1) + further;
  return [Math.max(most, last), last];
}
function chunkLayers(layers2, pp, interleave) {
  const chunks = Math.trunc(pp * interleave);
  if (layers2 % chunks === 0) return Array(chunks).fill(layers2 / chunks);
  const each = Math.floor((layers2 + ENDS) / chunks), over = layers2 + ENDS - each * chunks;
  const items = Array.from({ length: chunks }, (_, k) => each + Number(k < over));
  items[0] -= 1;
  items[chunks - 1] -= 1;
  return items;
}
function counted(of) {
  const [fullest, last] = held(of);
  return { fullest, last, chunks: chunkLayers(of.layers, of.pp, of.interleave), head: -1 };
}
function blocksByCost(layers2, head, pp) {
  const blocks = Array(pp).fill(0), share = (layers2 + head) / pp;
  let at = 0;
  for (let placed = 1; placed <= layers2; placed++) {
    blocks[at] += 1;
    if (placed > share * (at + 1)) at += 1;
  }
  return [blocks, at];
}
function byCost(of) {
  const [blocks, at] = blocksByCost(Math.trunc(of.layers), of.head, Math.trunc(of.pp));
  return { fullest: Math.max(...blocks), last: blocks[at] + of.further, chunks: blocks, head: at };
}
function fullButLast(of) {
  const chunks = of.pp * of.interleave, chunk = Math.ceil((of.layers + 2) / chunks);
  const full = chunk * of.interleave, first = Number(chunk === 2);
  const left = of.layers - (full - first) - (of.pp - 2) * full;
  if (of.layers % chunks === 0 || left < 0) return counted(of);
  const inner = Math.max(left - (of.interleave - 1) * chunk, 0);
  const laid = [chunk - first, ...Array(Math.trunc(chunks) - 2).fill(chunk), inner];
  return { fullest: full, last: left + of.further, chunks: laid, head: -1 };
}
var STAGES = {
  counted,
  by_cost: byCost,
  full_but_last: fullButLast
};
function asWritten(written, of) {
  const v = Math.trunc(of.interleave), chunks = [];
  for (let k = 0; k < v; k++)
    for (const n of written) chunks.push(Math.floor((n + v - 1 - k) / v));
  const last = written[written.length - 1] + of.further;
  return { fullest: Math.max(...written), last, chunks, head: -1 };
}
function loads(kinds, chunks, pp) {
  const found = Array(pp).fill(0);
  let layer = 0, end = 0;
  const taken = [0];
  for (const kind of kinds.order) taken.push(taken[taken.length - 1] + kinds.costs[kind]);
  chunks.forEach((chunk, k) => {
    end += chunk;
    const stop = Math.round(end);
    let each = taken[stop] - taken[layer];
    if (k === chunks.length - 1) each += kinds.further;
    found[k % pp] += each;
    layer = stop;
  });
  return found;
}
function stages(way, of, written) {
  if (of.pp <= 1) return [0, 0];
  if (!(way in STAGES)) throw new InputError(`stages: expected one of ${Object.keys(STAGES)}`);
  let found = written.length ? asWritten(written, of) : STAGES[way](of);
  const total = found.chunks.reduce((a, b) => a + b, 0);
  if (of.kinds !== null && total === of.layers) {
    const each = loads(of.kinds, found.chunks, Math.trunc(of.pp));
    const head = found.head < 0 ? each.length + found.head : found.head;
    found = { ...found, fullest: Math.max(...each), last: each[head] };
  }
  const fullest = Math.max(found.fullest, found.last);
  return [fullest - (of.layers + of.further) / of.pp, fullest - found.last];
}
var LAYER = 1.05;
var headCost = (width, inner, vocab) => vocab / (LAYER * (4 * width + 3 * inner));

// machine.ts
var LARGEST_HOST = 16;
var TORUS_HOST = 8;
var NUMBERS = ["size", "bytes_per_s", "latency_s", "torus_axes", "in_network_reduction"];
function chipOf(catalog, name, precision) {
  const main = catalog.resolved("chips", name), { rates, numbers } = catalog.data.chips[main];
  if (!(precision in rates))
    throw new InputError(`${main} has no ${precision} products; it has ${Object.keys(rates)}`);
  const half = ["bf16", "fp16"].find((each) => each in rates) ?? Object.keys(rates)[0];
  return { ...numbers, flops_per_s: rates[precision], attention_flops_per_s: rates[half] };
}
function networkOf(catalog, main) {
  const { levels } = catalog.data.systems[main];
  return Object.fromEntries(NUMBERS.map((name) => [name, levels.map((level) => level[name])]));
}
function sliced(network, chips) {
  const axes = Math.trunc(network.torus_axes[0]), doublings = Math.round(Math.log2(chips));
  const shape = Array.from({ length: axes }, (_, i) => 2 ** Math.floor((doublings + i) / axes));
  const period = axes === 3 ? 4 : 16;
  const used = shape.filter((s) => s > 1).map((s) => s % period === 0 ? 1 : 0.5);
  const sum = used.reduce((a, b) => a + b, 0);
  const rate = [...network.bytes_per_s], torus = [...network.torus_axes];
  torus[0] = Math.max(used.length, 1);
  rate[0] *= Math.max(sum, 0.5) / axes;
  return { ...network, size: [chips, Infinity], bytes_per_s: rate, torus_axes: torus };
}
function ofDomain(network, domain) {
  const pod = network.size[0], chips = domain ?? pod;
  if (!(chips >= 1) || chips === Infinity)
    throw new InputError(`domain_size: expected devices, from 1 on; got ${chips}`);
  if (network.torus_axes[0] > 1 && chips < pod && Number.isInteger(Math.log2(chips)))
    return sliced(network, chips);
  return { ...network, size: [chips, Infinity] };
}
function hostSize(host, network) {
  const size = network.size[0], torus = network.torus_axes[0] > 1;
  return size > LARGEST_HOST || torus || host >= size ? null : host;
}
function domainOf(question, host, network) {
  const given = question.number("domain_size"), devices = question.need("n_accel");
  const torus = network.torus_axes[0] > 1;
  const isHost = torus && given !== null && given <= TORUS_HOST && given < devices;
  if (given && !(given === host && isHost)) return given;
  if (torus)
    return Math.min(host && host > TORUS_HOST ? host : devices, devices, network.size[0]);
  return host ? hostSize(host, network) : null;
}
function changed(catalog, cluster, settings) {
  const chip = { ...cluster.chip }, network = { ...cluster.network };
  for (const [name, { part, leaf }] of Object.entries(catalog.data.quantities)) {
    if (!(name in settings)) continue;
    const value2 = Number(settings[name]) / (leaf === "price_per_s" ? 3600 : 1);
    if (part !== "chip") {
      network[leaf] = [...network[leaf]];
      network[leaf][part === "intra" ? 0 : 1] = value2;
    } else {
      const alike = leaf === "flops_per_s" && chip.flops_per_s === chip.attention_flops_per_s;
      chip[leaf] = value2;
      if (alike) chip.attention_flops_per_s = value2;
    }
  }
  return { ...cluster, chip, network };
}
function machine(catalog, question, values) {
  const accelerator = question.text("accelerator");
  const named = question.system || String(values.system ?? "");
  const own2 = catalog.data.chips[catalog.resolved("chips", accelerator)].system;
  const system = named || own2;
  if (!system) throw new InputError(`${accelerator}: no default system; name one`);
  const base = networkOf(catalog, catalog.resolved("systems", system));
  const host = values.accel_per_node ?? question.number("accel_per_node");
  let network = base;
  if (question.system) {
    const size = question.number("domain_size") || (host ? hostSize(host, base) : null);
    if (size) network = ofDomain(base, size);
  } else network = ofDomain(base, domainOf(question, host, ofDomain(base, null)));
  const chip = chipOf(catalog, accelerator, question.precision);
  return changed(catalog, { chip, network, devices: 0 }, question.settings);
}

// models.ts
var own = (model, name) => model[name];
var parts = (of) => [...of.model.mixers, ...of.model.feeds];
var having = (of, name) => parts(of).filter((part) => name in part);
function structure(of) {
  const pairs = of.pairs.map((pair) => pair.join("+")).join(" ");
  return `${of.kinds.mixers.join(",")}|${of.kinds.feeds.join(",")}|${pairs}`;
}
var Models = class {
  constructor(kinds, sizes) {
    this.kinds = kinds;
    this.sizes = sizes;
  }
  kinds;
  sizes;
  partOf(said) {
    const kind = this.kinds[said.kind], found = {};
    for (const [name, usual] of Object.entries(kind.fields)) {
      const value2 = said[name] ?? usual;
      if (value2 === null) throw new InputError(`${said.kind}: ${name} missing`);
      found[name] = Number(value2);
    }
    return found;
  }
  side(blocks, name) {
    const keys = [], kinds = [], found = [], places = [];
    for (const block of blocks) {
      const said = block[name];
      if (!said) {
        places.push(-1);
        continue;
      }
      const key = JSON.stringify(Object.entries(said).sort(([a], [b]) => a < b ? -1 : 1));
      if (!keys.includes(key)) {
        keys.push(key);
        kinds.push(said.kind);
        found.push(this.partOf(said));
      }
      places.push(keys.indexOf(key));
    }
    return [kinds, found, places];
  }
  assembled(sizes, blocks, order2 = [], further) {
    const total = blocks.reduce((sum, block) => sum + block.layers, 0);
    const [mixerKinds, mixers, first] = this.side(blocks, "mixer");
    const [feedKinds, feeds, second] = this.side(blocks, "feed");
    const heads = further ?? [blocks.length - 1];
    const model = {
      shares: blocks.map((block) => block.layers / total),
      further: blocks.map((_, k) => heads.filter((each) => each === k).length),
      mixers,
      feeds
    };
    for (const [name, usual] of Object.entries(this.sizes))
      model[name] = name === "n_layers" ? total : sizes[name] ?? usual;
    const pairs = first.map((i, k) => [i, second[k]]);
    return { model, kinds: { mixers: mixerKinds, feeds: feedKinds }, pairs, order: order2 };
  }
  of(shape) {
    const { blocks, order: order2, further, ...sizes } = shape;
    if (blocks === void 0) return this.decoder(sizes);
    const laid = (order2 ?? "").split(" ").filter(Boolean).flatMap((run) => {
      const [kind, many] = run.split("x").map(Number);
      return Array(many ?? 1).fill(kind);
    });
    return this.assembled(sizes, blocks, laid, further);
  }
  decoder(shape) {
    const said = { ...shape };
    const taken = /* @__PURE__ */ new Set(["n_layers"]);
    const pick = (kind, names) => {
      const part = { kind };
      for (const name of names) if (name in said) part[name] = said[name], taken.add(name);
      return part;
    };
    const fields = (kind) => Object.keys(this.kinds[kind].fields);
    const inner = (kind) => fields(kind).filter((n) => !(n in this.sizes));
    const experts = (said.n_experts ?? 1) > 1 ? "experts" : "dense";
    const block = {
      layers: said.n_layers,
      mixer: pick("attention", inner("attention")),
      feed: pick(experts, inner(experts))
    };
    return this.assembled(said, [block]);
  }
};
function shortened(of, layers2) {
  if (layers2 === null || layers2 === own(of.model, "n_layers")) return of;
  return { ...of, model: { ...of.model, n_layers: layers2 }, order: [] };
}
function sized(of, sizes) {
  const changed2 = (part) => {
    const found = { ...part };
    for (const [name, value2] of Object.entries(sizes)) if (name in part) found[name] = value2;
    return found;
  };
  const model = { ...of.model, mixers: of.model.mixers.map(changed2) };
  model.feeds = of.model.feeds.map(changed2);
  for (const [name, value2] of Object.entries(sizes)) {
    if (name in of.model) model[name] = value2;
    else if (!having(of, name).length)
      throw new InputError(`${name}: no part of this model has it`);
  }
  return { ...of, model };
}
var layers = (of) => own(of.model, "n_layers") + own(of.model, "n_mtp") * of.model.further.reduce((a, b) => a + b, 0);
function weights(of) {
  const whole = layers(of), { model } = of;
  const kinds = of.pairs.map((_, k) => (own(model, "n_layers") * model.shares[k] + own(model, "n_mtp") * model.further[k]) / whole);
  const side = (place, count) => Array.from({ length: count }, (_, i) => {
    const held2 = kinds.filter((_2, k) => of.pairs[k][place] === i);
    return held2.length === kinds.length ? 1 : held2.reduce((a, b) => a + b, 0);
  });
  return [...side(0, model.mixers.length), ...side(1, model.feeds.length)];
}
function value(of, name, otherwise = 0) {
  if (name in of.model) return own(of.model, name);
  const each = weights(of);
  const found = parts(of).map((part, i) => [each[i], part[name]]).filter(([, x]) => x !== void 0);
  if (!found.length) return otherwise;
  const whole = found.reduce((sum, [weight]) => sum + weight, 0);
  if (found.length === 1 && whole === 1) return found[0][1];
  return whole > 0 ? found.reduce((sum, [weight, x]) => sum + weight * x, 0) / whole : otherwise;
}
var WITHOUT = { gated_mlp: 0 };
function columnsOf(of, names) {
  const each = weights(of), all = parts(of), found = {};
  const most = (name) => {
    if (name in of.model) return own(of.model, name);
    let best = -1, value2 = WITHOUT[name] ?? 1;
    all.forEach((part, i) => {
      if (name in part && each[i] > best) [best, value2] = [each[i], part[name]];
    });
    return value2;
  };
  for (const name of [...names, "seq_len"]) found[name] = most(name);
  if (!having(of, "n_kv_heads").length) found.n_kv_heads = found.n_heads;
  const routed = of.model.feeds.find((feed) => "n_experts" in feed);
  found.d_ff = routed ? routed.d_ff : most("d_ff");
  return found;
}

// recompute.ts
var RESULTS = ["qkv", "core", "out", "up", "down"];
var PRODUCTS = ["qkv", "out", "up", "down"];
var CHOICES = ["recompute_layers", "recompute_keeps", "recompute_modules"];
var OFFLOADS = ["offload", "offload_inputs", "offload_results"];
var NOTHING = Object.fromEntries(
  "layers attention queries_values keys latents out into gate back dense experts norms activation narrow streams last_kept inputs others".split(" ").map((name) => [name, 0])
);
function byPolicy(keeps, experts) {
  const [qkv, core, out, up, down] = RESULTS.map((part) => Number(!keeps.includes(part)));
  return {
    ...NOTHING,
    attention: core,
    queries_values: qkv,
    keys: qkv,
    latents: qkv,
    out,
    into: up,
    gate: up,
    back: down * Number(experts > 1),
    streams: 1
  };
}
function byOperator(experts) {
  const mixture = Number(experts > 1);
  return {
    ...NOTHING,
    keys: 1,
    out: 1,
    into: mixture,
    gate: 1,
    back: mixture,
    streams: 1,
    last_kept: 1 - mixture
  };
}
function ofModules(names, experts, modules) {
  const there = names.filter((n) => n in modules && (experts > 1 || !n.startsWith("moe")));
  return Object.assign({}, NOTHING, ...there.map((name) => modules[name]));
}
function bySetting(name, value2, experts, modules) {
  if (name === "recompute_layers") return { ...NOTHING, layers: Number(value2) };
  const listed = Array.isArray(value2) ? value2 : [value2];
  const parts2 = listed.filter((part) => part !== "nothing");
  return name === "recompute_keeps" ? byPolicy(parts2, experts) : ofModules(parts2, experts, modules);
}
function isEmpty(value2) {
  return !value2 || Array.isArray(value2) && !value2.length;
}
function chosen(question, settings, experts, modules) {
  const kind = question.text("recompute"), whole = kind === "none" || kind === "full";
  const given = CHOICES.filter((name2) => name2 in question.settings);
  if (given.length && given.length + Number(whole) > 1)
    throw new InputError(`${[kind, ...given]}: these say different things; say one of them`);
  if (whole) return [{ ...NOTHING, layers: Number(kind === "full") }, false];
  const column = kind && !("recompute_policy" in question.settings);
  const name = given[0] ?? (column ? "" : CHOICES.find((n) => !isEmpty(settings[n])) ?? "");
  if (name) {
    const found = bySetting(name, settings[name], experts, modules);
    return [found, name !== "recompute_layers" || found.layers > 0];
  }
  const way = kind === "selective" ? String(settings.selective ?? "core") : "nothing";
  if (way === "operator") return [byOperator(experts), true];
  if (way === "products") return [byPolicy(PRODUCTS, experts), true];
  return [{ ...NOTHING, attention: Number(way === "core") }, false];
}
function again(question, settings, experts, modules) {
  const [found, said] = chosen(question, settings, experts, modules);
  const own2 = OFFLOADS.some((name) => name in question.settings) ? question.settings : settings;
  const both = Number(own2.offload ?? 0);
  const shares = {
    narrow: Number(settings.narrow_activations ?? 0),
    inputs: Number(own2.offload_inputs ?? both),
    others: Number(own2.offload_results ?? both)
  };
  return [{ ...found, ...shares }, said];
}
function isOpen(question, values, said) {
  const told = question.text("recompute") || values.recompute || values.composed;
  return !(told || CHOICES.some((name) => name in values) || said);
}

// resolve.ts
var SIZES = ["n_layers", "d_model", "d_ff", "n_heads", "vocab"];
var WRITTEN = ["n_layers", "d_model", "d_ff", "n_heads"];
var Question = class _Question {
  constructor(columns, settings = {}, system = "") {
    this.columns = columns;
    this.settings = settings;
    this.system = system;
  }
  columns;
  settings;
  system;
  text(name) {
    return String(this.columns[name] ?? "");
  }
  number(name) {
    const found = this.columns[name];
    return found === void 0 || found === "" ? null : Number(found);
  }
  need(name) {
    const found = this.number(name);
    if (found === null) throw new InputError(`${name} is open; say it`);
    return found;
  }
  get precision() {
    return this.text("precision").split("-")[0].toLowerCase() || "bf16";
  }
  having(columns) {
    return new _Question({ ...this.columns, ...columns }, this.settings, this.system);
  }
};
var divides = (a, b) => b % a === 0;
var Resolver = class {
  constructor(catalog, programs, usual) {
    this.catalog = catalog;
    this.programs = programs;
    this.usual = usual;
    this.models = new Models(catalog.data.kinds, catalog.data.sizes);
    this.facts = new Facts(catalog);
  }
  catalog;
  programs;
  usual;
  models;
  facts;
  catalogModel = remembered((name) => this.catalogModelAnew(name));
  parametersOf = remembered((name) => this.parameters(this.catalogModel(name)));
  columnsOf = remembered((name) => this.columns(this.catalogModel(name)));
  catalogModelAnew(name) {
    const id = name ? this.catalog.known("models", this.catalog.identify(name)[0]) : void 0;
    if (id === void 0) return null;
    return shortened(this.models.of(this.catalog.data.models[id].shape), this.catalog.cut(name)[1]);
  }
  resolving(built, plan, redo = null) {
    const names = this.programs(structure(built)).resolving;
    const nothing = new Proxy({}, { get: () => 0 });
    return outputs(names, { again: redo ?? nothing, model: built.model, plan }, true);
  }
  parameters(built) {
    const { neutral, homes } = this.catalog.data;
    const plan = planOf({ ...neutral, global_batch: 1, dp: 1, shard: 1 }, homes);
    return this.resolving(built, plan).parameters;
  }
  columns(built) {
    return columnsOf(built, this.catalog.data.fromModel);
  }
  completed(question) {
    const { fromModel, constants } = this.catalog.data;
    const open = (name2) => !(name2 in question.columns);
    if (!SIZES.some(open)) return question;
    const built = this.catalogModel(question.text("model"));
    if (built === null) return question;
    const name = question.text("model");
    const known = { ...this.columnsOf(name), n_params: this.parametersOf(name) };
    const differs = (name2) => {
      const given = Number(question.columns[name2]), at = known[name2];
      if (name2 === "n_params") return !!given && Math.abs(given / at - 1) > constants.far;
      const counted2 = name2 === "n_experts" || name2 === "top_k" ? Math.max(given, 1) : given;
      return name2 !== "vocab" && counted2 !== at;
    };
    if ([...fromModel, "n_params"].some((name2) => !open(name2) && differs(name2))) return question;
    const dense = !(known.n_experts > 1);
    const names = fromModel.filter((n) => !dense || n !== "n_experts" && n !== "top_k");
    const filled = [...names, "seq_len"].filter(open).map((n) => [n, known[n]]);
    return question.having(Object.fromEntries(filled));
  }
  degrees(question) {
    const devices = question.need("n_accel");
    const given = {};
    for (const name of ["dp", "tp", "pp", "cp", "ep"]) given[name] = question.number(name);
    const blank = ["tp", "pp"].filter((name) => given[name] === null);
    const derived = given.dp === null ? "dp" : blank.length === 1 ? blank[0] : "";
    for (const n of ["tp", "pp", "cp", "ep"]) if (given[n] === null && n !== derived) given[n] = 1;
    const whole = (name) => given[name] || 1;
    const product = whole("dp") * whole("tp") * whole("pp") * whole("cp");
    if (derived && devices % product === 0) given[derived] = devices / product;
    else if (product !== devices)
      throw new InputError(
        `degrees do not multiply to the devices: dp\xB7tp\xB7pp\xB7cp = ${product}, devices = ${devices}`
      );
    return {
      dp: whole("dp"),
      tp: whole("tp"),
      pp: whole("pp"),
      cp: whole("cp"),
      ep: whole("ep"),
      micro_batch: question.number("micro_batch")
    };
  }
  tuning(question) {
    return String(question.settings.tuning || this.catalog.identify(question.text("model"))[1]);
  }
  words(question, at, chip) {
    const stack = this.catalog.stack(question.text("stack")), layerCount = question.need("n_layers");
    const zero = question.number("zero_stage");
    return {
      stack: stack.basis,
      variant: stack.variant,
      release: stack.release,
      model: this.catalog.identify(question.text("model"))[0],
      chip,
      generation: this.catalog.generation(chip),
      tuning: this.tuning(question),
      precision: question.precision,
      scaling: question.text("precision").toLowerCase() || "bf16",
      attention: question.text("attention") !== "none" ? "flash" : "none",
      recompute: question.text("recompute"),
      composed: Boolean(question.settings.composed),
      n_experts: Math.max(question.number("n_experts") || 1, 1),
      top_k: question.number("top_k") || 1,
      n_layers: layerCount,
      stage_layers: layerCount / at.pp,
      devices: question.need("n_accel"),
      accel_per_node: question.number("accel_per_node"),
      seq_len: question.need("seq_len"),
      ...at,
      zero: zero ?? 1,
      shard: question.number("shard"),
      interleave: question.number("interleave"),
      ...question.settings
    };
  }
  applied(question, facts, words) {
    const given = /* @__PURE__ */ new Set([...Object.keys(question.settings), ...Object.keys(question.columns)]);
    if ("zero_stage" in question.columns) given.add("zero");
    return this.facts.apply(facts, words, given);
  }
  evaluated(values, words) {
    const plain = this.plain(values), found = { ...plain };
    const asked = { ...this.catalog.data.leaves, ...words, ...plain };
    for (const [name, each] of Object.entries(values)) {
      if (!isRule(each)) continue;
      const said = RULES[each.rule](asked, each);
      if (said !== null) found[name] = said;
    }
    return found;
  }
  plain(values) {
    return Object.fromEntries(Object.entries(values).filter(([, each]) => !isRule(each)));
  }
  layout(question, at, values) {
    const etp = question.number("etp") || 1, ranks = at.dp * at.tp * at.cp;
    const given = question.number("zero_stage");
    const zero = Number(values.zero ?? given ?? 1);
    const written = values.shard ?? question.number("shard") ?? null;
    const shard = zero === 0 ? 1 : written !== null ? Number(written) : at.dp;
    const filled = (name) => question.number(name) ?? Number(values[name] || 1);
    return {
      dp: at.dp,
      tp: at.tp,
      cp: at.cp,
      pp: at.pp,
      ep: Math.min(at.ep, ranks / etp),
      etp,
      sp: Number(values.sp ?? question.number("sp") ?? Number(at.tp > 1)),
      zero,
      shard,
      interleave: filled("interleave"),
      micro_batch: filled("micro_batch"),
      global_batch: question.need("global_batch")
    };
  }
  software(question, at, words) {
    const of = this.catalog.stack(question.text("stack")), { first } = this.catalog.data;
    const isFirst = (fact) => Object.keys({ ...fact.set, ...fact.means }).some((name) => first.includes(name));
    const early = this.applied(question, of.facts.filter(isFirst), words);
    const values = this.evaluated(early.values, words);
    const layout = this.layout(question, at, values);
    const { recompute: _, ...seen } = values;
    const asked = { ...words, ...seen, ...layout, replicas: at.dp / layout.shard };
    const late = this.applied(question, of.facts.filter((fact) => !isFirst(fact)), asked);
    const known = { ...asked, ...this.plain(late.values) };
    const settings = new Set(Object.keys(question.settings));
    const after = this.facts.apply(this.catalog.data.stacks._after.fact, known, settings);
    const decided = this.evaluated({ ...late.values, ...after.values }, asked);
    return {
      first: values,
      layout,
      facts: [...early.facts, ...late.facts, ...after.facts],
      values: { ...values, ...decided, ...question.settings }
    };
  }
  visited(question, experts) {
    const given = question.number("top_k");
    if (given || experts <= 1) return given || 1;
    const known = this.catalogModel(this.catalog.identify(question.text("model"))[0]);
    const columns = known && this.columns(known);
    return columns && columns.n_experts === experts ? columns.top_k : 1;
  }
  known(question) {
    const built = this.catalogModel(question.text("model"));
    if (built === null) return null;
    const columns = this.columnsOf(question.text("model"));
    const same = WRITTEN.every((name) => question.need(name) === columns[name]);
    const experts = Math.max(question.number("n_experts") || 1, 1);
    return same && experts === columns.n_experts ? built : null;
  }
  shape(question, known) {
    const shape = {};
    for (const name of [...SIZES, "seq_len"]) shape[name] = question.need(name);
    const heads = shape.n_heads, even = shape.d_model / heads;
    const size = known === null ? even : this.columns(known).head_dim;
    const latent = known !== null && having(known, "kv_rank").length > 0;
    shape.n_kv_heads = latent ? heads : question.number("n_kv_heads") || heads;
    shape.head_dim = latent ? size : question.number("head_dim") || size;
    const gated = question.number("gated_mlp");
    shape.gated_mlp = gated ?? Number(shape.d_ff !== 4 * shape.d_model);
    shape.n_experts = Math.max(question.number("n_experts") || 1, 1);
    shape.top_k = this.visited(question, shape.n_experts);
    return shape;
  }
  asColumns(known, shape) {
    const now = this.columns(known);
    const changed2 = Object.fromEntries(
      Object.entries(shape).filter(([name, x]) => name in now && x !== now[name])
    );
    let found = known;
    if ("n_layers" in changed2) found = { ...found, order: [] };
    if ("d_ff" in changed2) {
      const routed = having(found, "n_experts").length > 0;
      const feeds = found.model.feeds.map((feed) => "n_experts" in feed || !routed && "d_ff" in feed ? { ...feed, d_ff: changed2.d_ff } : feed);
      found = { ...found, model: { ...found.model, feeds } };
      delete changed2.d_ff;
    }
    const there = Object.entries(changed2).filter(
      ([name]) => name in found.model || having(found, name).length
    );
    return sized(found, Object.fromEntries(there));
  }
  model(question, settings) {
    const known = this.known(question), shape = this.shape(question, known);
    const load = (known === null ? 1 : value(known, "imbalance", 1)) * Number(settings.imbalance ?? 1);
    let found = known === null ? this.models.decoder(shape) : this.asColumns(known, shape);
    if (having(found, "imbalance").length) found = sized(found, { imbalance: load });
    found = this.packed(question, settings, found);
    const trainable = Number(this.tuning(question) !== "lora");
    found = sized(found, {
      n_mtp: Number(settings.n_mtp ?? 0),
      trainable,
      tied_embeddings: known === null ? -1 : own(known.model, "tied_embeddings")
    });
    if (!trainable) found = sized(found, adapters(settings, shape));
    const said = Object.entries(question.settings).filter(([name]) => this.catalog.data.ofParts.includes(name));
    return sized(found, Object.fromEntries(said.map(([name, x]) => [name, Number(x)])));
  }
  packed(question, settings, found) {
    const window = Number(settings.packed_window ?? 0);
    const fused = question.text("attention") !== "none";
    const packs = 0 < window && window < own(found.model, "seq_len") && fused;
    const held2 = having(found, "window");
    if (!packs || !held2.length || held2.some((part) => part.window < this.catalog.data.constants.all)) return found;
    return sized(found, { window });
  }
  /** What the published count of parameters decides (dmodel/counted.py). */
  settled(question, built) {
    const { far, near } = this.catalog.data.constants;
    const given = question.number("n_params") || 0;
    const gap = (of) => Math.min(...[0, 1].map((tied2) => Math.abs(this.parameters(sized(of, { tied_embeddings: tied2 })) / given - 1)));
    let found = built;
    if (given && having(built, "gated_mlp").length) {
      const feeds = built.model.feeds.map((feed) => "gated_mlp" in feed ? { ...feed, gated_mlp: 1 - feed.gated_mlp } : feed);
      const other = { ...built, model: { ...built.model, feeds } };
      if (gap(built) > far && gap(other) < near) found = other;
    }
    const known = own(found.model, "tied_embeddings");
    const untied = this.parameters(sized(found, { tied_embeddings: 0 }));
    const whole = untied - own(found.model, "vocab") * own(found.model, "d_model");
    const tied = given > 0 && 3 * Math.abs(given - whole) < Math.abs(given - untied);
    const open = given <= 0 && known >= 0;
    return sized(found, { tied_embeddings: open ? known : Number(tied) });
  }
  stageLeaves(question, at, values, built, interleave) {
    const text = question.text("stage_layers"), count = question.need("n_layers");
    const written = text.split(/\s+/).filter(Boolean).map(Number);
    const sum = written.reduce((a, b) => a + b, 0);
    if (text && (written.length !== at.pp || sum !== count || written.some((n) => !(n >= 0))))
      throw new InputError(`stage_layers: expected ${at.pp} numbers that add up to ${count}`);
    if (at.pp <= 1) return [0, 0];
    const width = own(built.model, "d_model");
    const head = headCost(width, value(built, "d_ff", width), own(built.model, "vocab"));
    const whole = own(built.model, "n_layers");
    const kinds = this.kinds(built, whole);
    const of = { layers: whole, head, pp: at.pp, interleave, further: layers(built) - whole, kinds };
    return stages(String(values.stages ?? "counted"), of, written);
  }
  kinds(built, whole) {
    const { pairs, order: order2, model } = built;
    if (pairs.length === 1 || order2.length !== Math.round(whole)) return null;
    const { neutral, homes } = this.catalog.data;
    const found = this.resolving(built, planOf({ ...neutral, global_batch: 1, dp: 1 }, homes));
    const flops = pairs.map((_, k) => found[`flops.${k}`]);
    const mean = flops.reduce((sum, x, k) => sum + x * model.shares[k], 0);
    const costs = flops.map((x) => x / mean);
    const further = own(model, "n_mtp") * costs.reduce((sum, x, k) => sum + x * model.further[k], 0);
    return { order: order2, costs, further };
  }
  check(question) {
    const lacking = [...SIZES, "seq_len"].filter((name) => !(name in question.columns));
    if (lacking.length)
      throw new InputError(
        `${lacking.join(", ")} open, and the catalog does not fill them for the model '${question.text("model")}'`
      );
    const wrong = [...problems(question, this.degrees(question))];
    if (wrong.length) throw new InputError(wrong.join("; "));
  }
  /** Records of a question. Throws InputError where it has no answer. */
  resolve(asked) {
    let question = this.completed(asked);
    this.check(question);
    const at = this.degrees(question), { data } = this.catalog;
    const chip = this.catalog.knownAs(question.text("accelerator"));
    const soft = this.software(question, at, this.words(question, at, chip));
    const meant = {};
    if ("vocab" in soft.first) meant.vocab = soft.first.vocab;
    if (question.text("recompute") && "recompute" in soft.first)
      meant.recompute = soft.first.recompute;
    if (!question.text("attention") && "attention" in soft.first)
      meant.attention = soft.first.attention;
    question = question.having(meant);
    const raw = this.model(question, soft.values);
    const experts = value(raw, "n_experts", 1);
    const [redo, said] = again(question, soft.values, experts, data.modules);
    const leaves = { ...data.neutral, ...data.leaves };
    for (const name of Object.keys(data.leaves))
      if (name in soft.values) leaves[name] = Number(soft.values[name]);
    const { interleave } = soft.layout;
    const [excess, displaced] = this.stageLeaves(question, at, soft.values, raw, interleave);
    Object.assign(leaves, { stage_excess: excess, head_displaces: displaced }, soft.layout, {
      flash: Number(question.text("attention") !== "none"),
      operand_bytes: data.operands[question.precision]
    });
    const schedule = String(soft.values.schedule || (interleave > 1 ? "interleaved" : "1f1b"));
    if (interleave > 1 && schedule !== "interleaved")
      throw new InputError(`interleave: expected 1 for the schedule ${schedule}`);
    if (schedule !== "interleaved" && schedule !== "1f1b")
      throw new InputError(`schedule ${schedule}: not on this page; ask \`dmodel predict\``);
    if ("placement" in soft.values)
      throw new InputError("placement: not on this page; ask `dmodel predict`");
    const cluster = machine(this.catalog, question, soft.values);
    const built = this.settled(question, raw);
    const open = isOpen(question, soft.values, said);
    this.redone(leaves, redo, built, cluster, open);
    const facts = soft.facts.filter((fact) => this.matters(fact, raw));
    return { ...this.overridden(question, leaves, built, cluster), facts, open };
  }
  /** Not where a fact is about parts that a model lacks. */
  matters(fact, built) {
    const { needs } = this.catalog.data, names = Object.keys({ ...fact.set, ...fact.means });
    const spoken = names.every((name) => name in needs);
    return !spoken || names.some((name) => having(built, needs[name]).length > 0);
  }
  redone(leaves, redo, built, cluster, open) {
    const { homes } = this.catalog.data;
    const done = this.resolving(built, planOf(leaves, homes), redo);
    Object.assign(leaves, {
      recompute_layers: redo.layers,
      recompute_attention: redo.attention,
      recompute_products: done["redone.recompute_products"],
      recompute_elementwise: redo.streams,
      last_kept: redo.last_kept,
      recompute_bytes: done["redone.recompute_bytes"],
      offload: done["redone.offload"]
    });
    if (!open) return;
    const [layerShare, attention] = this.cheapest(leaves, built, cluster);
    Object.assign(leaves, { recompute_layers: layerShare, recompute_attention: attention });
    leaves.offload = this.resolving(built, planOf(leaves, homes), redo).offload;
  }
  /** The least recomputation whose memory fits the device. */
  cheapest(leaves, built, cluster) {
    const program = this.programs(structure(built)).evaluated;
    const excess = (layerShare, attention) => {
      const own2 = { ...leaves, recompute_layers: layerShare, recompute_attention: attention };
      const plan = planOf(own2, this.catalog.data.homes);
      const whole = { cluster, model: built.model, plan, ...this.usual };
      const found = outputs(program, { case: whole, spread: 1 }, false);
      return found["outputs.memory_bytes"] - cluster.chip.hbm_bytes;
    };
    const none = excess(0, 0), selective = excess(0, 1), full = excess(1, 0);
    if (none <= 0 || selective <= 0) return [0, Number(none > 0)];
    return [Math.min(Math.max(none / Math.max(none - full, 1), 0), 1), 0];
  }
  overridden(question, leaves, built, cluster) {
    const { homes, overridden } = this.catalog.data;
    const model = { ...built.model };
    for (const [name, each] of Object.entries(question.settings)) {
      if (!overridden.includes(name)) continue;
      if (name in homes) leaves[name] = Number(each);
      else model[name] = Number(each);
    }
    const plan = planOf(leaves, homes), made = { ...built, model };
    return { case: { cluster, model, plan, ...this.usual }, built: made };
  }
};
function adapters(settings, shape) {
  const queries = shape.n_heads * shape.head_dim, keys = shape.n_kv_heads * shape.head_dim;
  const mlp = shape.n_experts <= 1 ? shape.d_ff : 0, up = 1 + shape.gated_mlp;
  const first = {
    q_proj: queries,
    k_proj: keys,
    v_proj: keys,
    linear_qkv: queries + 2 * keys,
    up_proj: mlp,
    linear_fc1: up * mlp,
    ...up > 1 ? { gate_proj: mlp } : {}
  };
  const last = { o_proj: queries, linear_proj: queries, down_proj: mlp, linear_fc2: mlp };
  const listed = settings.adapters ?? [];
  const read = listed.filter((n) => n in first), returned = listed.filter((n) => n in last);
  const sum = (names, of) => names.reduce((total, n) => total + of[n], 0);
  return {
    first_adapters: read.length,
    first_adapted: sum(read, first),
    last_adapters: returned.length,
    last_adapted: sum(returned, last),
    adapter_dropout: Number(settings.adapter_dropout ?? 0)
  };
}
function* problems(question, at) {
  const heads = question.need("n_heads"), kv = question.number("n_kv_heads");
  const width = question.need("d_model"), depth = question.need("n_layers");
  const experts = question.number("n_experts") || 1, visited = question.number("top_k") || 1;
  const batch = question.need("global_batch"), length = question.need("seq_len");
  const micro = at.micro_batch || 1, chunks = at.pp * (question.number("interleave") || 1);
  const shard = question.number("shard");
  if (kv && heads % kv) yield `n_heads = ${heads} is not divisible by n_kv_heads = ${kv}`;
  if (!question.number("head_dim") && width % heads)
    yield `head_dim is blank and d_model = ${width} is not divisible by n_heads = ${heads}`;
  if (visited > experts) yield `top_k = ${visited} is more than n_experts = ${experts}`;
  if (!divides(at.tp, heads)) yield `tp = ${at.tp} does not divide n_heads = ${heads}`;
  if (at.pp > depth) yield `pp = ${at.pp} stages for n_layers = ${depth}`;
  if (at.pp > 1 && at.pp <= depth && depth <= chunks - at.pp)
    yield `pp\xB7interleave = ${chunks} chunks for n_layers = ${depth}: chunks would have no layer`;
  if (!divides(at.cp, length)) yield `cp = ${at.cp} does not divide seq_len = ${length}`;
  if (!divides(at.dp * micro, batch))
    yield `global_batch = ${batch} is not divisible by dp\xB7micro_batch = ${at.dp}\xB7${micro}`;
  for (const name of ["stage_excess", "head_displaces"])
    if (Number(question.settings[name] ?? 0) > depth) yield `${name} is more than n_layers`;
  if (batch * length > 1e12)
    yield `global_batch \xB7 seq_len = ${batch * length} tokens a step: expected at most 1e12`;
  if (shard && at.dp % shard) yield `shard = ${shard} does not divide dp = ${at.dp}`;
  if (!divides(at.ep, experts)) yield `ep = ${at.ep} does not divide n_experts = ${experts}`;
}

// cases.ts
var infinite = (_, value2) => value2 === "inf" ? Infinity : value2;
function answers(data, texts, usual, asked, compile) {
  const made = /* @__PURE__ */ new Map();
  const programs = (name) => {
    if (!made.has(name)) {
      if (!(name in texts)) throw new InputError(`no program for ${name}`);
      const of = Object.entries(texts[name]).map(([key, one]) => [key, { ...one, run: compile(one.text) }]);
      made.set(name, Object.fromEntries(of));
    }
    return made.get(name);
  };
  const resolver = new Resolver(new Catalog(data), programs, usual);
  return asked.map((each) => {
    try {
      const found = resolver.resolve(new Question(each.columns, each.settings, each.system));
      const of = programs(structure(found.built)).evaluated;
      return {
        structure: structure(found.built),
        inputs: [...inputs(of, { case: found.case, spread: 1 })],
        facts: found.facts.map((fact) => fact.says)
      };
    } catch (error) {
      if (error instanceof InputError) return { error: error.message };
      throw error;
    }
  });
}
