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
  best: () => best,
  configs: () => configs,
  infinite: () => infinite,
  joined: () => joined,
  unfolded: () => unfolded
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
  /** Takes in a model under a name of its own. */
  put(name, shape) {
    this.data.models[name] = { aliases: [], shape };
    this.spellings.get("models").set(fold(name), name);
  }
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
      const parent = this.parent(name);
      return parent ? this.chain(parent) : [];
    });
    return [...inherited, ...file.fact];
  }
  /** What a search may propose for a stack, of its file or what that extends. */
  runs(name) {
    const seen = (file) => {
      if (Object.keys(file.runs).length) return file.runs;
      for (const each of file.extends) {
        const parent = this.parent(each), found2 = parent ? seen(parent) : {};
        if (Object.keys(found2).length) return found2;
      }
      return {};
    };
    const found = this.knownFamily(name.split("/")[0].trim());
    return found ? seen(this.data.stacks[found[1]]) : {};
  }
  parent(name) {
    return this.data.stacks[name] ?? this.data.stacks[this.knownFamily(name.split("/")[0])?.[1] ?? ""];
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

// models.ts
var own = (model, name) => model[name];
var parts = (of) => [...of.model.mixers, ...of.model.feeds];
var having = (of, name) => parts(of).filter((part) => name in part);
function structure(of, levels = 2) {
  const pairs = of.pairs.map((pair) => pair.join("+")).join(" ") + (levels === 2 ? "" : ` ${levels}`);
  return `${of.kinds.mixers.join(",")}|${of.kinds.feeds.join(",")}|${pairs}`;
}
var Models = class {
  constructor(kinds, sizes) {
    this.kinds = kinds;
    this.sizes = sizes;
  }
  kinds;
  sizes;
  partOf(said2) {
    const kind = this.kinds[said2.kind], found = {};
    for (const [name, usual] of Object.entries(kind.fields)) {
      const value2 = said2[name] ?? usual;
      if (value2 === null) throw new InputError(`${said2.kind}: ${name} missing`);
      found[name] = Number(value2);
    }
    return found;
  }
  side(blocks, name) {
    const keys = [], kinds = [], found = [], places = [];
    for (const block of blocks) {
      const said2 = block[name];
      if (!said2) {
        places.push(-1);
        continue;
      }
      const key = JSON.stringify(Object.entries(said2).sort(([a], [b]) => a < b ? -1 : 1));
      if (!keys.includes(key)) {
        keys.push(key);
        kinds.push(said2.kind);
        found.push(this.partOf(said2));
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
    const said2 = { ...shape };
    const taken2 = /* @__PURE__ */ new Set(["n_layers"]);
    const pick = (kind, names2) => {
      const part = { kind };
      for (const name of names2) if (name in said2) part[name] = said2[name], taken2.add(name);
      return part;
    };
    const fields = (kind) => Object.keys(this.kinds[kind].fields);
    const inner = (kind) => fields(kind).filter((n) => !(n in this.sizes));
    const experts = (said2.n_experts ?? 1) > 1 ? "experts" : "dense";
    const block = {
      layers: said2.n_layers,
      mixer: pick("attention", inner("attention")),
      feed: pick(experts, inner(experts))
    };
    return this.assembled(said2, [block]);
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
  const whole2 = layers(of), { model } = of;
  const kinds = of.pairs.map((_, k) => (own(model, "n_layers") * model.shares[k] + own(model, "n_mtp") * model.further[k]) / whole2);
  const side = (place, count) => Array.from({ length: count }, (_, i) => {
    const held3 = kinds.filter((_2, k) => of.pairs[k][place] === i);
    return held3.length === kinds.length ? 1 : held3.reduce((a, b) => a + b, 0);
  });
  return [...side(0, model.mixers.length), ...side(1, model.feeds.length)];
}
function value(of, name, otherwise = 0) {
  if (name in of.model) return own(of.model, name);
  const each = weights(of);
  const found = parts(of).map((part, i) => [each[i], part[name]]).filter(([, x]) => x !== void 0);
  if (!found.length) return otherwise;
  const whole2 = found.reduce((sum, [weight]) => sum + weight, 0);
  if (found.length === 1 && whole2 === 1) return found[0][1];
  return whole2 > 0 ? found.reduce((sum, [weight, x]) => sum + weight * x, 0) / whole2 : otherwise;
}
var WITHOUT = { gated_mlp: 0 };
function columnsOf(of, names2) {
  const each = weights(of), all = parts(of), found = {};
  const most = (name) => {
    if (name in of.model) return own(of.model, name);
    let best2 = -1, value2 = WITHOUT[name] ?? 1;
    all.forEach((part, i) => {
      if (name in part && each[i] > best2) [best2, value2] = [each[i], part[name]];
    });
    return value2;
  };
  for (const name of [...names2, "seq_len"]) found[name] = most(name);
  if (!having(of, "n_kv_heads").length) found.n_kv_heads = found.n_heads;
  const routed = of.model.feeds.find((feed) => "n_experts" in feed);
  found.d_ff = routed ? routed.d_ff : most("d_ff");
  return found;
}
function ffWidth(of) {
  const each = weights(of);
  const mean = (chosen2, otherwise) => {
    const whole2 = chosen2.reduce((sum, [weight]) => sum + weight, 0);
    return whole2 > 0 ? chosen2.reduce((sum, [w, x]) => sum + w * x, 0) / whole2 : otherwise;
  };
  const those = (routed) => parts(of).flatMap((part, i) => "d_ff" in part && "n_experts" in part === routed ? [[each[i], part.d_ff]] : []);
  return mean(those(true), mean(those(false), 1));
}

// profile.ts
function footprintOf(profile, family, variant) {
  const own2 = profile.footprints[variant ? `${family}/${variant}` : family];
  if (own2) return own2;
  const alike = profile.footprints[`${family}/*`];
  if (!alike) return profile.least;
  return { ...alike, spread: Math.hypot(alike.spread, profile.variants) };
}
function lineage(catalog, family) {
  const seen = (id) => {
    const file = catalog.data.stacks[id];
    if (!file) return "";
    if (file.lineage) return file.lineage;
    for (const name of file.extends) {
      const found = seen(catalog.knownFamily(name.split("/")[0])?.[1] ?? name);
      if (found) return found;
    }
    return "";
  };
  const known2 = catalog.knownFamily(family);
  return known2 && seen(known2[1]) || (known2 ? known2[0] : family);
}
function members(catalog, accelerator, stack) {
  const main = catalog.known("chips", accelerator);
  const chip = main === void 0 ? accelerator : catalog.knownAs(main);
  const generation = catalog.generation(chip);
  const of = stack ? catalog.stack(stack) : null;
  const name = of?.basis ?? "";
  const both = Boolean(chip && name);
  return {
    generation,
    accelerator: chip,
    lineage: name ? lineage(catalog, name) : "",
    stack: name,
    variant: of?.variant ? `${name}/${of.variant}` : "",
    port: both ? `${generation || chip} ${name}` : "",
    pair: both ? `${chip} ${name}` : ""
  };
}
function coefficients(profile, of) {
  const found = {};
  profile.names.forEach((name, i) => {
    let z = profile.center[i];
    for (const [grouping, member] of Object.entries(of))
      z += profile.offsets[grouping]?.[member]?.[i] ?? 0;
    found[name] = profile.shares[i] ? 1 / (1 + Math.exp(-z)) : Math.exp(z);
  });
  return found;
}

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
  const mix = {}, layout = { mix };
  const plan = { global_batch: leaves.global_batch, layout, precision: {}, software: {} };
  for (const [name, value2] of Object.entries(leaves))
    if (homes[name] === "layout.mix") mix[name] = value2;
    else if (homes[name] !== "plan") plan[homes[name]][name] = value2;
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
    const known2 = this.catalog.data.conditions[name];
    if (known2 !== void 0) return known2;
    const first = Array.isArray(wanted) && wanted.length ? wanted[0] : wanted;
    return isNumber(first) || isRange(first) ? "number" : "word";
  }
  /** Whether a value of a word is what a condition wants. */
  test(name, wanted, value2) {
    return this.holds(wanted, this.kindOf(name, wanted), value2);
  }
  holds(wanted, kind, value2) {
    if (Array.isArray(wanted)) {
      const not = wanted.length > 0 && wanted.every((each) => String(each).startsWith("!"));
      const holds2 = (each) => this.holds(each, kind, value2);
      return not ? wanted.every(holds2) : wanted.some(holds2);
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
    let known2 = words;
    const values = {}, by = /* @__PURE__ */ new Map(), held3 = [];
    for (const fact of facts) {
      const when = Object.entries(fact.when ?? {});
      if (!when.every(([n, w]) => this.test(n, w, known2[n]))) continue;
      held3.push(fact);
      const open = Object.entries(fact.set ?? {}).filter(([name]) => !given.has(name));
      for (const [name, value2] of [...open, ...Object.entries(fact.means ?? {})]) {
        values[name] = typeof value2 === "boolean" ? Number(value2) : value2;
        by.set(name, fact);
      }
      known2 = { ...words, ...values };
    }
    const decided = new Set(by.values());
    return { values, facts: held3.filter((fact) => decided.has(fact)) };
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
function shortBy(layers2, pp, interleave) {
  const chunks = pp * interleave, items = layers2 + ENDS, over = layers2 % chunks;
  const missing = Math.max((chunks - 1) * Math.ceil(items / chunks) + 1 - items, 0);
  const last = held({ layers: layers2, pp, interleave, further: 0 })[1];
  const apart = Math.min(over, missing + Math.max(1 - last, 0));
  return (layers2 % pp === 0 ? over : apart) + Math.max(pp - layers2, 0);
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
    for (const n of of.fold === "v" && k % 2 ? [...written].reverse() : written) chunks.push(Math.floor((n + v - 1 - k) / v));
  const last = written[written.length - 1] + of.further;
  return { fullest: Math.max(...written), last, chunks, head: -1 };
}
function loads(kinds, chunks) {
  let layer = 0, end = 0;
  const taken2 = [0];
  for (const kind of kinds.order) taken2.push(taken2[taken2.length - 1] + kinds.costs[kind]);
  return chunks.map((chunk, k) => {
    end += chunk;
    const stop = Math.round(end);
    let each = taken2[stop] - taken2[layer];
    if (k === chunks.length - 1) each += kinds.further;
    layer = stop;
    return each;
  });
}
function rankOf(chunk, pp, fold2) {
  const turn = Math.floor(chunk / pp), place = chunk - turn * pp;
  return fold2 === "v" && turn % 2 ? pp - 1 - place : place;
}
function onRanks(each, pp, fold2) {
  const found = Array(pp).fill(0);
  each.forEach((x, k) => {
    found[rankOf(k, pp, fold2)] += x;
  });
  return fold2 === "both" ? found.map((x, i) => (x + found[pp - 1 - i]) / 2) : found;
}
var allows = (of, pp, batches) => pp % of.multiple === 0 && batches >= of.fill * pp && batches % of.pairs === 0;
function stages(way, of, written) {
  if (of.pp <= 1) return [0, 0];
  if (!(way in STAGES)) throw new InputError(`stages: expected one of ${Object.keys(STAGES)}`);
  let found = written.length ? asWritten(written, of) : STAGES[way](of);
  if (Math.min(0, ...found.chunks) < 0)
    throw new InputError(`interleave: ${of.pp * of.interleave} chunks are more than the ${of.layers} layers with embedding and head; take fewer chunks per stage`);
  const total = found.chunks.reduce((a, b) => a + b, 0), count = found.chunks.length;
  const pp = Math.trunc(of.pp), unlike = of.kinds !== null && total === of.layers;
  if (unlike || of.fold !== "loop") {
    const plain2 = found.chunks.map((x, k) => k === count - 1 ? x + of.further : x);
    const each = onRanks(unlike ? loads(of.kinds, found.chunks) : plain2, pp, of.fold);
    const head = found.head < 0 ? rankOf(count - 1, pp, of.fold) : found.head;
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
function usualPrecision(catalog, name) {
  const main = catalog.known("chips", name), { usual } = catalog.data;
  const rates = main === void 0 ? {} : catalog.data.chips[main].rates;
  return usual.find((each) => each in rates) ?? Object.keys(rates)[0] ?? usual[0];
}
var precisionOf = (catalog, question) => question.precision || usualPrecision(catalog, question.text("accelerator"));
function hostOf(catalog, chip, system = "") {
  const { hosts, chips } = catalog.data, { like, generation } = chips[chip];
  return hosts[[system, chip, like ?? "", generation].find((each) => each in hosts) ?? "default"];
}
var hosted = (of, running) => ({
  host_bytes_per_s: of.link,
  host_memory_bytes_per_s: of.memory / Math.max(Math.min(running, of.devices), 1)
});
function chipOf(catalog, name, precision) {
  const main = catalog.resolved("chips", name), { rates, numbers } = catalog.data.chips[main];
  if (!(precision in rates))
    throw new InputError(`${main} has no ${precision} products; it has ${Object.keys(rates)}`);
  const half = usualPrecision(catalog, main);
  const host = hosted(hostOf(catalog, main), Infinity);
  return { ...numbers, ...host, flops_per_s: rates[precision], attention_flops_per_s: rates[half] };
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
  if (network.size.length !== 2)
    throw new InputError(`a network of ${network.size.length} levels is taken whole here; leave out devices of a domain`);
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
      const levels = network.size.length;
      if (part === "inter" && levels !== 2)
        throw new InputError(`${name}: the network has ${levels} levels, and this is the outer one of two; say it in a file: \`dmodel catalog systems NAME --toml\` prints a start`);
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
  const running = Math.min(question.need("n_accel"), host || LARGEST_HOST, LARGEST_HOST);
  const main = catalog.resolved("chips", accelerator);
  const of = hostOf(catalog, main, named && catalog.resolved("systems", named));
  const chip = { ...chipOf(catalog, accelerator, precisionOf(catalog, question)), ...hosted(of, running) };
  return changed(catalog, { chip, network, devices: 0 }, question.settings);
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
function ofModules(names2, experts, modules) {
  const there = names2.filter((n) => n in modules && (experts > 1 || !n.startsWith("moe")));
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
  const kind = question.text("recompute"), whole2 = kind === "none" || kind === "full";
  const given = CHOICES.filter((name2) => name2 in question.settings);
  if (given.length && given.length + Number(whole2) > 1)
    throw new InputError(`${[kind, ...given]}: these say different things; say one of them`);
  if (whole2) return [{ ...NOTHING, layers: Number(kind === "full") }, false];
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
  const [found, said2] = chosen(question, settings, experts, modules);
  const own2 = OFFLOADS.some((name) => name in question.settings) ? question.settings : settings;
  const both = Number(own2.offload ?? 0);
  const shares = {
    narrow: Number(settings.narrow_activations ?? 0),
    inputs: Number(own2.offload_inputs ?? both),
    others: Number(own2.offload_results ?? both)
  };
  return [{ ...found, ...shares }, said2];
}
function isOpen(question, values, said2) {
  const told = question.text("recompute") || values.recompute || values.composed;
  return !(told || CHOICES.some((name) => name in values) || said2);
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
    return this.text("precision").split("-")[0].toLowerCase();
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
  /** The catalog's model of a name. */
  builtOf(name) {
    const found = this.catalogModel(name);
    if (found === null) throw new InputError(`unknown model '${name}'`);
    return found;
  }
  resolving(built, plan, redo = null) {
    const names2 = this.programs(structure(built)).resolving;
    const nothing = new Proxy({}, { get: () => 0 });
    return outputs(names2, { again: redo ?? nothing, model: built.model, plan }, true);
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
    const known2 = { ...this.columnsOf(name), n_params: this.parametersOf(name) };
    const differs = (name2) => {
      const given = Number(question.columns[name2]), at = known2[name2];
      if (name2 === "n_params") return !!given && Math.abs(given / at - 1) > constants.far;
      const counted2 = name2 === "n_experts" || name2 === "top_k" ? Math.max(given, 1) : given;
      return name2 !== "vocab" && counted2 !== at;
    };
    if ([...fromModel, "n_params"].some((name2) => !open(name2) && differs(name2))) return question;
    const dense = !(known2.n_experts > 1);
    const names2 = fromModel.filter((n) => !dense || n !== "n_experts" && n !== "top_k");
    const filled = [...names2, "seq_len"].filter(open).map((n) => [n, known2[n]]);
    return question.having(Object.fromEntries(filled));
  }
  degrees(question) {
    const devices = question.need("n_accel");
    const given = {};
    for (const name of ["dp", "tp", "pp", "cp", "ep"]) given[name] = question.number(name);
    const blank = ["tp", "pp"].filter((name) => given[name] === null);
    const derived = given.dp === null ? "dp" : blank.length === 1 ? blank[0] : "";
    for (const n of ["tp", "pp", "cp", "ep"]) if (given[n] === null && n !== derived) given[n] = 1;
    const whole2 = (name) => given[name] || 1;
    const product2 = whole2("dp") * whole2("tp") * whole2("pp") * whole2("cp");
    if (derived && devices % product2 === 0) given[derived] = devices / product2;
    else if (product2 !== devices)
      throw new InputError(
        `degrees do not multiply to the devices: dp\xB7tp\xB7pp\xB7cp = ${product2}, devices = ${devices}`
      );
    return {
      dp: whole2("dp"),
      tp: whole2("tp"),
      pp: whole2("pp"),
      cp: whole2("cp"),
      ep: whole2("ep"),
      micro_batch: question.number("micro_batch")
    };
  }
  tuning(question) {
    const said2 = String(question.settings.tuning || this.catalog.identify(question.text("model"))[1]);
    return said2 === "qlora" ? "lora" : said2;
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
      precision: precisionOf(this.catalog, question),
      scaling: question.text("precision").toLowerCase() || precisionOf(this.catalog, question),
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
      ...question.settings,
      tuning: this.tuning(question),
      frozen: question.settings.tuning === "qlora" ? "nf4" : ""
    };
  }
  applied(question, facts, words) {
    const given = /* @__PURE__ */ new Set([...Object.keys(question.settings), ...Object.keys(question.columns)]);
    if ("zero_stage" in question.columns) given.add("zero");
    return this.facts.apply(facts, words, given);
  }
  evaluated(values, words) {
    const plain2 = this.plain(values), found = { ...plain2 };
    const asked = { ...this.catalog.data.leaves, ...words, ...plain2 };
    for (const [name, each] of Object.entries(values)) {
      if (!isRule(each)) continue;
      const said2 = RULES[each.rule](asked, each);
      if (said2 !== null) found[name] = said2;
    }
    return found;
  }
  plain(values) {
    return Object.fromEntries(Object.entries(values).filter(([, each]) => !isRule(each)));
  }
  rules(schedule) {
    const { schedules } = this.catalog.data;
    if (!(schedule in schedules))
      throw new InputError(`schedule: expected one of ${Object.keys(schedules)}; got ${schedule}`);
    return schedules[schedule];
  }
  /** The pipeline's schedule, on one stage 1F1B; throws InputError where it does not run so. */
  schedule(values, of) {
    const { interleave, pp } = of;
    const chosen2 = String(values.schedule || (interleave > 1 ? "interleaved" : "1f1b"));
    const rules = this.rules(chosen2), folded = rules.fold !== "loop";
    if (folded && pp <= 1) return this.schedule({}, of);
    if (rules.chunks && interleave !== rules.chunks)
      throw new InputError(`interleave: expected ${rules.chunks} for the schedule ${chosen2}; got ${interleave}`);
    const batches = of.global_batch / (of.dp * of.micro_batch);
    if (folded && !allows(rules, pp, batches))
      throw new InputError(
        `schedule ${chosen2}: expected pp a multiple of ${rules.multiple}, and at least ${rules.fill * pp} micro-batches, a multiple of ${rules.pairs}; got pp = ${pp}, ${batches}`
      );
    return chosen2;
  }
  layout(question, at, values) {
    const etp = question.number("etp") || 1, ranks = at.dp * at.tp * at.cp;
    const given = question.number("zero_stage");
    const zero = Number(values.zero ?? given ?? 1);
    const written = values.shard ?? question.number("shard") ?? null;
    const shard = zero === 0 ? 1 : written !== null ? Number(written) : at.dp;
    const filled = (name) => question.number(name) ?? Number(values[name] || 1);
    const chosen2 = String(question.settings.schedule ?? values.schedule ?? "");
    const chunks = at.pp > 1 && chosen2 ? this.rules(chosen2).chunks : 0;
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
      interleave: chunks > 1 ? question.number("interleave") ?? chunks : filled("interleave"),
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
    const known2 = { ...asked, ...this.plain(late.values) };
    const settings = new Set(Object.keys(question.settings));
    const after = this.facts.apply(this.catalog.data.stacks._after.fact, known2, settings);
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
    const known2 = this.catalogModel(this.catalog.identify(question.text("model"))[0]);
    const columns = known2 && this.columns(known2);
    return columns && columns.n_experts === experts ? columns.top_k : 1;
  }
  known(question) {
    const built = this.catalogModel(question.text("model"));
    if (built === null) return null;
    const columns = this.columnsOf(question.text("model"));
    const same2 = WRITTEN.every((name) => question.need(name) === columns[name]);
    const experts = Math.max(question.number("n_experts") || 1, 1);
    return same2 && experts === columns.n_experts ? built : null;
  }
  shape(question, known2) {
    const shape = {};
    for (const name of [...SIZES, "seq_len"]) shape[name] = question.need(name);
    const heads = shape.n_heads, even2 = shape.d_model / heads;
    const size = known2 === null ? even2 : this.columns(known2).head_dim;
    const latent = known2 !== null && having(known2, "kv_rank").length > 0;
    shape.n_kv_heads = latent ? heads : question.number("n_kv_heads") || heads;
    shape.head_dim = latent ? size : question.number("head_dim") || size;
    const gated = question.number("gated_mlp");
    shape.gated_mlp = gated ?? Number(shape.d_ff !== 4 * shape.d_model);
    shape.n_experts = Math.max(question.number("n_experts") || 1, 1);
    shape.top_k = this.visited(question, shape.n_experts);
    return shape;
  }
  asColumns(known2, shape) {
    const now = this.columns(known2);
    const changed2 = Object.fromEntries(
      Object.entries(shape).filter(([name, x]) => name in now && x !== now[name])
    );
    let found = known2;
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
    const known2 = this.known(question), shape = this.shape(question, known2);
    const load = (known2 === null ? 1 : value(known2, "imbalance", 1)) * Number(settings.imbalance ?? 1);
    let found = known2 === null ? this.models.decoder(shape) : this.asColumns(known2, shape);
    if (having(found, "imbalance").length) found = sized(found, { imbalance: load });
    found = this.packed(question, settings, found);
    const trainable = Number(this.tuning(question) !== "lora");
    found = sized(found, {
      n_mtp: Number(settings.n_mtp ?? 0),
      trainable,
      tied_embeddings: known2 === null ? -1 : own(known2.model, "tied_embeddings")
    });
    if (!trainable) found = sized(found, adapters(settings, shape));
    const said2 = Object.entries(question.settings).filter(([name]) => this.catalog.data.ofParts.includes(name));
    return sized(found, Object.fromEntries(said2.map(([name, x]) => [name, Number(x)])));
  }
  packed(question, settings, found) {
    const window = Number(settings.packed_window ?? 0);
    const fused = question.text("attention") !== "none";
    const packs = 0 < window && window < own(found.model, "seq_len") && fused;
    const held3 = having(found, "window");
    if (!packs || !held3.length || held3.some((part) => part.window < this.catalog.data.constants.all)) return found;
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
    const known2 = own(found.model, "tied_embeddings");
    const untied = this.parameters(sized(found, { tied_embeddings: 0 }));
    const whole2 = untied - own(found.model, "vocab") * own(found.model, "d_model");
    const tied = given > 0 && 3 * Math.abs(given - whole2) < Math.abs(given - untied);
    const open = given <= 0 && known2 >= 0;
    return sized(found, { tied_embeddings: open ? known2 : Number(tied) });
  }
  stageLeaves(question, at, values, built, interleave, fold2) {
    const text = question.text("stage_layers"), count = question.need("n_layers");
    const written = text.split(/\s+/).filter(Boolean).map(Number);
    const sum = written.reduce((a, b) => a + b, 0);
    if (text && (written.length !== at.pp || sum !== count || written.some((n) => !(n >= 0))))
      throw new InputError(`stage_layers: expected ${at.pp} numbers that add up to ${count}`);
    if (at.pp <= 1) return [0, 0];
    const width = own(built.model, "d_model");
    const head = headCost(width, value(built, "d_ff", width), own(built.model, "vocab"));
    const whole2 = own(built.model, "n_layers");
    const kinds = this.kinds(built, whole2);
    const of = { layers: whole2, head, pp: at.pp, interleave, further: layers(built) - whole2, kinds, fold: fold2 };
    return stages(String(values.stages ?? "counted"), of, written);
  }
  kinds(built, whole2) {
    const { pairs, order: order2, model } = built;
    if (pairs.length === 1 || order2.length !== Math.round(whole2)) return null;
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
  /** Records of a question; no `room`: nothing is recomputed unless said. Throws InputError where
   * it has no answer. */
  resolve(asked, room = { footprint: this.usual.footprint, share: 1 }) {
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
    const [redo, said2] = again(question, soft.values, experts, data.modules);
    const leaves = { ...data.neutral, ...data.leaves };
    for (const name of Object.keys(data.leaves))
      if (name in soft.values) leaves[name] = Number(soft.values[name]);
    const { interleave } = soft.layout;
    const schedule = this.schedule(soft.values, soft.layout), { fold: fold2 } = this.rules(schedule);
    const [excess, displaced] = this.stageLeaves(question, at, soft.values, raw, interleave, fold2);
    for (const [name, of] of Object.entries(data.mixed)) leaves[name] = Number(of === schedule);
    Object.assign(leaves, { stage_excess: excess, head_displaces: displaced }, soft.layout, {
      flash: Number(question.text("attention") !== "none"),
      operand_bytes: data.operands[precisionOf(this.catalog, question)]
    });
    if ("placement" in soft.values)
      throw new InputError("placement: not on this page; ask `dmodel predict`");
    const cluster = machine(this.catalog, question, soft.values);
    const built = this.settled(question, raw);
    const open = isOpen(question, soft.values, said2);
    this.redone(leaves, redo, built, cluster, open ? room : null);
    const facts = soft.facts.filter((fact) => this.matters(fact, raw));
    return { ...this.overridden(question, leaves, built, cluster), facts, open, question };
  }
  /** Not where a fact is about parts that a model lacks. */
  matters(fact, built) {
    const { needs } = this.catalog.data, names2 = Object.keys({ ...fact.set, ...fact.means });
    const spoken = names2.every((name) => name in needs);
    return !spoken || names2.some((name) => having(built, needs[name]).length > 0);
  }
  redone(leaves, redo, built, cluster, room) {
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
    if (!room) return;
    const [layerShare, attention] = this.cheapest(leaves, built, cluster, room);
    Object.assign(leaves, { recompute_layers: layerShare, recompute_attention: attention });
    leaves.offload = this.resolving(built, planOf(leaves, homes), redo).offload;
  }
  /** The least recomputation whose memory fits the device. */
  cheapest(leaves, built, cluster, room) {
    const program = this.programs(structure(built, cluster.network.size.length)).evaluated;
    const excess = (layerShare, attention) => {
      const own2 = { ...leaves, recompute_layers: layerShare, recompute_attention: attention };
      const plan = planOf(own2, this.catalog.data.homes);
      const whole2 = { cluster, model: built.model, plan, ...this.usual, footprint: room.footprint };
      const found = outputs(program, { case: whole2, spread: 1 }, false);
      return found["outputs.memory_bytes"] - room.share * cluster.chip.hbm_bytes;
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
  const read2 = listed.filter((n) => n in first), returned = listed.filter((n) => n in last);
  const sum = (names2, of) => names2.reduce((total, n) => total + of[n], 0);
  return {
    first_adapters: read2.length,
    first_adapted: sum(read2, first),
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

// answer.ts
var Model = class {
  constructor(data, profile, programsOf) {
    this.profile = profile;
    this.programsOf = programsOf;
    this.catalog = new Catalog(data);
    const usual = {
      coefficients: coefficients(profile, {}),
      footprint: profile.least.footprint
    };
    this.resolver = new Resolver(this.catalog, programsOf, usual);
  }
  profile;
  programsOf;
  catalog;
  resolver;
  /** Records of a question, and with the coefficients of its chip and stack. */
  records(question, never = false) {
    const stack = question.text("stack"), of = stack ? this.catalog.stack(stack) : null;
    const fitted = footprintOf(this.profile, of ? of.basis : "", of ? of.variant : "");
    const share = Math.exp(fitted.spread * this.catalog.data.search.deviations);
    const found = this.resolver.resolve(question, never ? null : { footprint: fitted.footprint, share });
    const groups = members(this.catalog, question.text("accelerator"), stack);
    const coefficient = coefficients(this.profile, groups);
    const whole2 = { ...found.case, coefficients: coefficient, footprint: fitted.footprint };
    return { found, whole: { case: whole2, spread: fitted.spread } };
  }
  /** Throws InputError where the question has no answer. */
  answer(question, slopes) {
    const { found, whole: { case: whole2, spread } } = this.records(question);
    const kinds = structure(found.built, whole2.cluster.network.size.length);
    const program = this.programsOf(kinds).evaluated;
    const values = outputs(program, { case: whole2, spread }, slopes);
    const time = values["outputs.step_time_s"], memory = values["outputs.memory_bytes"];
    if (!(time > 0 && time < Infinity && memory > 0) || values.least_utilization > 1)
      throw new InputError("no machine does what is asked: some value is out of range");
    const { layout } = whole2.plan;
    const recompute = found.open ? said(layout) : "";
    const { facts } = found;
    const asked = found.question;
    return { values, case: whole2, facts, recompute, structure: kinds, spread, question: asked, built: found.built };
  }
  /** Outputs of an answer's case with another bandwidth, which no rule asks for. */
  withBandwidth(found, name, value2) {
    const { part, leaf } = this.catalog.data.quantities[name], { cluster } = found.case;
    const level = part === "intra" ? 0 : cluster.network.size.length - 1;
    const network = { ...cluster.network }, chip = { ...cluster.chip };
    if (part === "chip") chip[leaf] = value2;
    else network[leaf] = network[leaf].map((x, i) => i === level ? value2 : x);
    const changed2 = { ...found.case, cluster: { ...cluster, chip, network } };
    const program = this.programsOf(found.structure).evaluated;
    return outputs(program, { case: changed2, spread: found.spread }, false);
  }
};
function said(layout) {
  if (layout.recompute_layers === 1) return "full";
  if (layout.recompute_layers > 0) return `${(100 * layout.recompute_layers).toFixed(0)} % of layers`;
  return layout.recompute_attention > 0 ? "selective" : "none";
}

// formula.ts
var TOKEN = /\s*(?:(\d+(?:\.\d+)?(?:e-?\d+)?)|("[^"]*"|'[^']*')|(not in\b|[A-Za-z_]\w*)|(\/\/|==|!=|<=|>=|[-+*/%<>()[\],]))/y;
var CONSTANTS = { True: true, False: false, None: null };
var FUNCTIONS = ["len", "max", "min", "int", "up_to", "listed", "numbers"];
var truth = (value2) => Array.isArray(value2) ? value2.length > 0 : typeof value2 === "object" && value2 !== null ? Object.keys(value2).length > 0 : Boolean(value2);
var isNumber2 = (value2) => typeof value2 === "number" || typeof value2 === "boolean";
function shown(value2) {
  const text = (x) => {
    if (x === null || x === void 0) return "None";
    if (typeof x === "boolean") return x ? "True" : "False";
    if (typeof x === "string") return x.includes("'") && !x.includes('"') ? `"${x}"` : `'${x}'`;
    if (Array.isArray(x)) return `[${x.map(text).join(", ")}]`;
    if (typeof x === "object")
      return `{${Object.entries(x).map(([k, v]) => `${text(k)}: ${text(v)}`).join(", ")}}`;
    return String(x);
  };
  return text(value2).slice(0, 40);
}
function same(a, b) {
  if (isNumber2(a) && isNumber2(b)) return Number(a) === Number(b);
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((x, i) => same(x, b[i]));
  return a === b;
}
var NoValue = class extends Error {
};
function number2(value2) {
  if (!isNumber2(value2)) throw new NoValue(`no number: ${shown(value2)}`);
  return Number(value2);
}
function held2(one, several) {
  if (Array.isArray(several)) return several.some((each) => same(one, each));
  if (typeof several === "string" && typeof one === "string") return several.includes(one);
  if (typeof several === "object" && several !== null) return Object.hasOwn(several, String(one));
  throw new NoValue(`no list: ${shown(several)}`);
}
function added(a, b) {
  if (Array.isArray(a) && Array.isArray(b)) return [...a, ...b];
  if (typeof a === "string" && typeof b === "string") return a + b;
  return number2(a) + number2(b);
}
function multiplied(a, b) {
  const [many, each] = isNumber2(a) ? [a, b] : [b, a];
  const times = Math.max(number2(many), 0);
  if (typeof each === "string" || Array.isArray(each)) {
    if (!Number.isInteger(times) || times > 1e5) throw new NoValue("too long");
    return typeof each === "string" ? each.repeat(times) : Array(times).fill(each).flat(1);
  }
  return number2(a) * number2(b);
}
function divided(a, b, way) {
  if (number2(b) === 0) throw new NoValue("division by zero");
  return way(number2(a) / number2(b));
}
function ordered(a, b) {
  if (typeof a === "string" && typeof b === "string") return a < b ? -1 : Number(a > b);
  return number2(a) - number2(b);
}
var OPERATORS = {
  "+": added,
  "-": (a, b) => number2(a) - number2(b),
  "*": multiplied,
  "/": (a, b) => divided(a, b, (x) => x),
  "//": (a, b) => divided(a, b, Math.floor),
  "%": (a, b) => number2(a) - number2(b) * divided(a, b, Math.floor)
};
var COMPARED = {
  "==": same,
  "!=": (a, b) => !same(a, b),
  "<": (a, b) => ordered(a, b) < 0,
  "<=": (a, b) => ordered(a, b) <= 0,
  ">": (a, b) => ordered(a, b) > 0,
  ">=": (a, b) => ordered(a, b) >= 0,
  in: held2,
  "not in": (a, b) => !held2(a, b)
};
function whole(value2) {
  const found = typeof value2 === "string" ? Number(value2.trim() || NaN) : number2(value2);
  if (!Number.isFinite(found)) throw new NoValue(`no number: ${shown(value2)}`);
  return Math.trunc(found);
}
function called(name, given) {
  const [value2] = given;
  const all = given.length === 1 && Array.isArray(value2) ? value2 : given;
  switch (name) {
    case "len":
      if (typeof value2 === "string" || Array.isArray(value2)) return value2.length;
      if (typeof value2 === "object" && value2 !== null) return Object.keys(value2).length;
      throw new NoValue(`no list: ${shown(value2)}`);
    case "max":
      return all.map(number2).reduce((a, b) => Math.max(a, b));
    case "min":
      return all.map(number2).reduce((a, b) => Math.min(a, b));
    case "int":
      return whole(value2);
    case "up_to":
      return -Math.floor(-divided(value2, given[1], (x) => x)) * number2(given[1]);
    case "listed":
      return Array.isArray(value2) || typeof value2 === "string";
    default:
      if (typeof value2 !== "string" && !Array.isArray(value2)) throw new NoValue(`no list: ${shown(value2)}`);
      return (typeof value2 === "string" ? value2.split(",") : value2).map(whole);
  }
}
function element(name, of, index) {
  if (typeof of === "object" && of !== null && !Array.isArray(of))
    return Object.hasOwn(of, String(index)) ? of[String(index)] ?? null : null;
  if (!Array.isArray(of) && typeof of !== "string")
    throw new InputError(`'${name}': expected a list, got ${shown(of)}`);
  const at = number2(index);
  if (!(-of.length <= at && at < of.length))
    throw new InputError(`'${name}': expected an entry for each layer, at least ${at + 1}; got ${of.length}`);
  return of[at < 0 ? at + of.length : at];
}
var Parser = class {
  constructor(text) {
    this.text = text;
    TOKEN.lastIndex = 0;
    while (TOKEN.lastIndex < text.trimEnd().length) {
      const found = TOKEN.exec(text);
      if (!found) throw new Error(`formula not read: ${text}`);
      this.tokens.push(found[0].trim());
    }
  }
  text;
  tokens = [];
  at = 0;
  whole() {
    const found = this.chosen();
    if (this.at < this.tokens.length) throw new Error(`formula not read: ${this.text}`);
    return found;
  }
  is(...words) {
    const found = this.tokens[this.at];
    if (found === void 0 || !words.includes(found)) return null;
    this.at += 1;
    return found;
  }
  need(word) {
    if (!this.is(word)) throw new Error(`formula not read: ${this.text}`);
  }
  node(of, ...parts2) {
    return { of, names: new Set(parts2.flatMap((part) => [...part.names])) };
  }
  chosen() {
    const yes = this.either();
    if (!this.is("if")) return yes;
    const test = this.either();
    this.need("else");
    const no = this.chosen();
    return this.node((look) => (truth(test.of(look)) ? yes : no).of(look), yes, test, no);
  }
  either() {
    const parts2 = [this.both()];
    while (this.is("or")) parts2.push(this.both());
    return this.first(parts2, true);
  }
  both() {
    const parts2 = [this.not()];
    while (this.is("and")) parts2.push(this.not());
    return this.first(parts2, false);
  }
  first(parts2, wanted) {
    if (parts2.length === 1) return parts2[0];
    return this.node((look) => {
      let value2 = null;
      for (const part of parts2) {
        value2 = part.of(look);
        if (truth(value2) === wanted) break;
      }
      return value2;
    }, ...parts2);
  }
  not() {
    if (!this.is("not")) return this.compared();
    const inner = this.not();
    return this.node((look) => !truth(inner.of(look)), inner);
  }
  compared() {
    const parts2 = [this.sum()], operators = [];
    for (let op = this.is(...Object.keys(COMPARED)); op; op = this.is(...Object.keys(COMPARED))) {
      operators.push(op);
      parts2.push(this.sum());
    }
    if (!operators.length) return parts2[0];
    return this.node((look) => {
      let left = parts2[0].of(look);
      for (let i = 0; i < operators.length; i++) {
        const right = parts2[i + 1].of(look);
        if (!COMPARED[operators[i]](left, right)) return false;
        left = right;
      }
      return true;
    }, ...parts2);
  }
  row(words, next) {
    let left = next();
    for (let op = this.is(...words); op; op = this.is(...words)) {
      const [a, b, act] = [left, next(), OPERATORS[op]];
      left = this.node((look) => act(a.of(look), b.of(look)), a, b);
    }
    return left;
  }
  sum = () => this.row(["+", "-"], this.product);
  product = () => this.row(["*", "/", "//", "%"], this.sign);
  sign = () => {
    if (!this.is("-")) return this.after();
    const inner = this.sign();
    return this.node((look) => -number2(inner.of(look)), inner);
  };
  after() {
    const start = this.at;
    let found = this.atom();
    while (this.is("[")) {
      const held3 = found, name = this.tokens.slice(start, this.at - 1).join("");
      const index = this.chosen();
      this.need("]");
      found = this.node((look) => element(name, held3.of(look), index.of(look)), held3, index);
    }
    return found;
  }
  several(end) {
    const found = [];
    while (!this.is(end)) {
      found.push(this.chosen());
      this.is(",");
    }
    return found;
  }
  atom() {
    const token = this.tokens[this.at++];
    if (token === "(") {
      const inner = this.chosen();
      this.need(")");
      return inner;
    }
    if (token === "[") {
      const parts2 = this.several("]");
      return this.node((look) => parts2.map((part) => part.of(look)), ...parts2);
    }
    if (/^\d/.test(token)) return this.node(() => Number(token));
    if (/^["']/.test(token)) return this.node(() => token.slice(1, -1));
    if (Object.hasOwn(CONSTANTS, token)) return this.node(() => CONSTANTS[token]);
    if (FUNCTIONS.includes(token) && this.is("(")) {
      const parts2 = this.several(")");
      return this.node((look) => called(token, parts2.map((part) => part.of(look))), ...parts2);
    }
    return { of: (look) => look(token), names: /* @__PURE__ */ new Set([token]) };
  }
};
var parsed = /* @__PURE__ */ new Map();
function read(text) {
  let found = parsed.get(text);
  if (!found) parsed.set(text, found = new Parser(text).whole());
  return found;
}
var names = (text) => [...read(text).names];
function workedOut(text, look) {
  try {
    return read(text).of(look);
  } catch (error) {
    if (!(error instanceof NoValue)) throw error;
    throw new InputError(`${names(text).sort().join(", ")}: no value can be made of them (${error.message})`);
  }
}

// configs.ts
var isTable = (value2) => typeof value2 === "object" && value2 !== null && !Array.isArray(value2);
var has = (table, name) => Object.hasOwn(table, name);
var spelled = (found, key) => has(found.written, key) ? found.written[key] : key;
var ENDING = /(For(CausalLM|ConditionalGeneration)|LMHeadModel|Model)$/;
var MissingKey = class extends Error {
};
var Reader = class {
  constructor(configs2, kinds) {
    this.configs = configs2;
    this.kinds = kinds;
    const { rules } = configs2;
    this.harmless = new RegExp(`^(?:${rules.harmless.map((each) => `(?:${each})`).join("|")})$`);
    this.structural = new RegExp(rules.structural.join("|"));
    this.towers = new RegExp(rules.towers.join("|"));
    this.others = new Set(Object.values(rules.spellings).flat());
    for (const [name, said2] of Object.entries(configs2.families))
      for (const each of [name, ...said2.names ?? []]) this.types.set(fold(each), name);
  }
  configs;
  kinds;
  types = /* @__PURE__ */ new Map();
  families = /* @__PURE__ */ new Map();
  harmless;
  structural;
  towers;
  others;
  /** The model of a text, and what was taken for granted. Throws InputError with the reason why not. */
  read(text) {
    let content;
    try {
      content = JSON.parse(text.replace(/^\uFEFF/, ""));
    } catch (error) {
      throw new InputError(`not JSON (${error.message}); expected a Hugging Face config.json`);
    }
    if (!isTable(content)) throw new InputError("expected a JSON object with the keys of a Hugging Face config.json");
    const found = this.source(content), { rules } = this.configs;
    for (const [key, says] of Object.entries(rules.encoders))
      if (truth(found.keys[key]))
        throw new InputError(`'${key}' says ${says}; only decoders are modelled, and this is none`);
    const [family, word] = this.familyOf(found.types);
    for (const kind of found.types) {
      if (kind === word) break;
      if (has(rules.types, kind)) throw new InputError(`model_type '${kind}': ${rules.types[kind]}`);
    }
    const used = usedBy(family), scope = new Scope(found, family, this.configs);
    this.refuseMechanisms(found, used, word);
    const shape = this.shape(found, family, scope, used);
    return { shape, notes: [...new Set(this.notes(found, family, used, scope, word))] };
  }
  source(content) {
    const { parts: parts2, shared, spellings } = this.configs.rules;
    let config = plain(content), types = typesOf(config), nested = "", outside = objects(config);
    for (let part = parts2.find((p) => isTable(config[p])); part; part = parts2.find((p) => isTable(config[p]))) {
      const around = config, name = part;
      config = config[part];
      nested = nested ? `${nested}.${part}` : part;
      types = [...typesOf(config), ...types];
      outside = [...outside.filter((each) => each !== name), ...objects(config)];
      const taken2 = shared.filter((key) => (config[key] ?? null) === null && has(around, key));
      config = { ...config, ...Object.fromEntries(taken2.map((key) => [key, around[key]])) };
    }
    const keys = { ...config }, written = {};
    for (const [key, others] of Object.entries(spellings)) {
      const other = others.find((each) => (config[each] ?? null) !== null);
      if ((config[key] ?? null) !== null || other === void 0) continue;
      keys[key] = config[other];
      written[key] = other;
      delete keys[other];
    }
    return { keys, written, types: [...new Set(types)], nested, outside };
  }
  familyOf(types) {
    for (const each of types)
      for (const word of [each, each.replace(/_text$/, ""), each.replace(ENDING, "")]) {
        const name = this.types.get(fold(word));
        if (name !== void 0) return [this.family(name), each];
      }
    return [this.family(this.configs.plain), ""];
  }
  said(name) {
    const own2 = this.configs.families[name];
    if (!("like" in own2)) return own2;
    const { names: _, ...below } = this.said(own2.like);
    return merged(below, own2);
  }
  family(name) {
    if (!this.families.has(name)) {
      const said2 = this.said(name);
      const empty = { defaults: {}, assumed: {}, let: {}, further: "", ignores: [], notes: [], refusals: [] };
      const mixers = partsOf(said2.mixers), feeds = partsOf(said2.feeds);
      this.families.set(name, { ...empty, ...said2, name, mixers, feeds });
    }
    return this.families.get(name);
  }
  refuseMechanisms(found, used, word) {
    const { mechanisms } = this.configs.rules;
    for (const [key, value2] of Object.entries(found.keys)) {
      if (used.has(key) || !saysSomething(value2)) continue;
      if (has(mechanisms, key))
        throw new InputError(`'${spelled(found, key)}' is ${shown(value2)}: ${mechanisms[key]}`);
      if (!word && this.isStructural(key, value2))
        throw new InputError(`${unknown(found)}, and its key '${key}' (${shown(value2)}) is none of a plain decoder's; what it means is not known here`);
    }
  }
  isStructural(key, value2) {
    if (typeof value2 === "boolean" || typeof value2 === "string") return false;
    return !this.harmless.test(key) && !this.others.has(key) && this.structural.test(key);
  }
  shape(found, family, scope, used) {
    for (const each of family.refusals)
      if (holds(each.when, scope)) throw new InputError(scope.words(each.say));
    const missing = [];
    while (missing.length <= used.size) {
      try {
        const shape = this.model(family, scope);
        if (!missing.length) return shape;
        break;
      } catch (error) {
        if (error instanceof MissingKey) {
          missing.push(error.message);
          found.keys[error.message] = 1;
        } else if (!(error instanceof InputError) || !missing.length) throw error;
        else break;
      }
    }
    const known2 = family.name !== this.configs.plain;
    const what = known2 ? `model_type '${found.types[0]}' needs the missing keys` : `${unknown(found)}, and keys of a decoder are missing`;
    throw new InputError(`${what}: ${missing.join(", ")}`);
  }
  model(family, scope) {
    const sizes = {};
    for (const [name, formula] of Object.entries(family.sizes)) sizes[name] = scope.value(formula);
    const { layers: depth, ...own2 } = sizes, { deepest } = this.configs;
    if (!isNumber2(depth) || !(Number(depth) >= 1 && Number(depth) <= deepest))
      throw new InputError(`'num_hidden_layers': expected a whole number from 1 to ${deepest.toLocaleString("en")}, got ${shown(depth)}`);
    const layers2 = Array.from({ length: Math.trunc(Number(depth)) }, (_, i) => {
      const mixer = scope.of({ i }).value(family.mixer);
      return [mixer, scope.of({ i, mixer, feed: "" }).value(family.feed)];
    });
    for (const [name, size] of Object.entries(own2)) this.check(name, size, "model", ["small"]);
    const blocks = [], order2 = [];
    const place = (block) => {
      const key = sorted(block), at = blocks.findIndex((each) => sorted(each) === key);
      return at >= 0 ? at : blocks.push(block) - 1;
    };
    layers2.forEach(([mixer, feed], i) => order2.push(place(this.block(family, scope.of({ i, mixer, feed }), mixer, feed, i))));
    const count = blocks.length, last = layers2[layers2.length - 1];
    const inner = scope.of({ i: layers2.length - 1, mixer: last[0], feed: last[1] });
    const said2 = family.further ? inner.value(family.further) : null;
    const further = (truth(said2) ? said2 : [last]).map(([mixer, feed]) => {
      const at = truth(said2) ? layers2.length : layers2.length - 1;
      return place(this.block(family, scope.of({ i: at, mixer, feed }), mixer, feed, at));
    });
    const whole2 = blocks.map((block, k) => ({ layers: k < count ? order2.filter((x) => x === k).length : 0, ...block }));
    const laid = whole2.length > 1 ? { order: order2.join(" ") } : {};
    const numbers = Object.fromEntries(Object.entries(own2).map(([name, x]) => [name, Number(x)]));
    return { ...numbers, blocks: whole2, ...laid, further };
  }
  block(family, scope, mixer, feed, i) {
    const found = {};
    const sides = [["mixer", mixer, family.mixers], ["feed", feed, family.feeds]];
    for (const [side, name, known2] of sides) {
      if (name === "") continue;
      if (typeof name !== "string" || !has(known2, name))
        throw new InputError(`layer ${i}: ${shown(name)} is no ${side} that is read here; expected one of: ${Object.keys(known2).join(", ")}`);
      found[side] = this.part(known2[name], scope, `layer ${i}, ${name}`);
    }
    return found;
  }
  part(of, scope, where) {
    const free = Object.keys(of.sizes).filter((name) => !this.kinds[of.kind].counted.includes(name));
    const sizes = {};
    for (const [name, formula] of Object.entries(of.sizes)) {
      const size = scope.value(formula);
      if (size === null) continue;
      this.check(name, size, where, free);
      sizes[name] = Number(size);
    }
    const { n_heads: heads, n_kv_heads: shared, top_k: top, n_experts: experts } = sizes;
    if (heads && shared && heads % shared)
      throw new InputError(`${where}: the ${heads} heads are not a multiple of the ${shared} KV heads`);
    if (top && experts && top > experts)
      throw new InputError(`${where}: top-k ${top} exceeds the ${experts} experts`);
    return { ...sizes, kind: of.kind };
  }
  check(name, size, where, mayBeZero) {
    const { largest, free, own: own2 } = this.configs;
    const least = mayBeZero.includes(name) || own2.includes(name) ? 0 : 1;
    const whole2 = isNumber2(size) && Math.abs(Number(size)) <= largest ** 2 && Number.isInteger(Number(size));
    if (!whole2 || Number(size) < least && !free.includes(name))
      throw new InputError(`${where}: ${name}: expected a whole number from ${least}, got ${shown(size)}`);
  }
  *notes(found, family, used, scope, word) {
    const outside = found.outside.filter((key) => this.towers.test(key));
    if (found.nested) yield `the language model in '${found.nested}' is read`;
    if (outside.length) yield `other towers are left out: ${outside.join(", ")}`;
    if (!word) yield `${unknown(found)}: read by its keys, as a decoder`;
    else if (!found.nested && word !== found.types[0])
      yield `${unknown(found)}: read as ${family.name}, by the architecture ${word}`;
    for (const each of family.notes) if (holds(each.when, scope)) yield scope.words(each.say);
    for (const [key, value2] of Object.entries(scope.assumed))
      yield `${key} is not in the file: ${Number(Number(value2).toPrecision(12))}, as transformers has it`;
    for (const key of this.configs.rules.further)
      if (truth(found.keys[key])) yield `heads of further tokens (${key} ${found.keys[key]}) are left out (n_mtp 0)`;
    const unused = Object.entries(found.keys).filter(([key, value2]) => !used.has(key) && saysSomething(value2) && this.isStructural(key, value2)).map(([key]) => key);
    if (unused.length) yield `keys that are not used: ${unused.join(", ")}`;
  }
};
function unknown(found) {
  return found.types.length ? `model_type '${found.types[0]}' is not known` : "there is no 'model_type'";
}
function plain(value2) {
  if (Array.isArray(value2)) return value2.map(plain);
  if (isTable(value2)) return Object.fromEntries(Object.entries(value2).map(([key, each]) => [key, plain(each)]));
  if (typeof value2 !== "string") return value2;
  const low2 = value2.toLowerCase();
  return low2 === "true" ? true : low2 === "false" ? false : value2;
}
function typesOf(config) {
  const kind = config.model_type ?? null, built = config.architectures;
  if (kind !== null && typeof kind !== "string")
    throw new InputError(`'model_type': expected a name, got ${shown(kind)}; not supported`);
  const listed = Array.isArray(built) ? built.filter((each) => typeof each === "string") : [];
  return kind ? [kind, ...listed] : listed;
}
var objects = (config) => Object.keys(config).filter((key) => isTable(config[key]));
function merged(below, above) {
  const found = { ...below };
  for (const [key, value2] of Object.entries(above)) {
    const old = found[key];
    if (isTable(value2) && isTable(old)) found[key] = merged(old, value2);
    else if (Array.isArray(value2) && Array.isArray(old)) found[key] = [...old, ...value2];
    else found[key] = value2;
  }
  return found;
}
function partsOf(tables) {
  return Object.fromEntries(Object.entries(tables).map(([name, own2]) => {
    let found = { ...own2 };
    while ("like" in found) {
      const { like, ...rest } = found;
      found = { ...tables[like], ...rest };
    }
    const { kind, ...sizes } = found;
    return [name, { kind, sizes }];
  }));
}
function usedBy(family) {
  const parts2 = [...Object.values(family.mixers), ...Object.values(family.feeds)].map((part) => part.sizes);
  const tables = [family.defaults, family.let, family.sizes, ...parts2];
  const texts = tables.flatMap((each) => Object.values(each)).filter((x) => typeof x === "string");
  texts.push(family.mixer, family.feed, family.further || "0");
  texts.push(...[...family.notes, ...family.refusals].map((each) => each.when));
  return /* @__PURE__ */ new Set([
    ...texts.flatMap(names),
    ...Object.keys(family.defaults),
    ...Object.keys(family.assumed),
    ...family.ignores
  ]);
}
var saysSomething = (value2) => value2 === true || truth(value2) && value2 !== 1 && value2 !== "none" && value2 !== "None";
function sorted(value2) {
  return JSON.stringify(value2, (_, x) => isTable(x) ? Object.fromEntries(Object.entries(x).sort(([a], [b]) => a < b ? -1 : 1)) : x);
}
function holds(formula, scope) {
  try {
    return truth(scope.value(formula));
  } catch (error) {
    if (error instanceof MissingKey) return false;
    throw error;
  }
}
var Scope = class _Scope {
  constructor(found, family, configs2, local = {}) {
    this.found = found;
    this.family = family;
    this.configs = configs2;
    this.local = local;
  }
  found;
  family;
  configs;
  local;
  assumed = {};
  of(local) {
    const inner = new _Scope(this.found, this.family, this.configs, local);
    inner.assumed = this.assumed;
    return inner;
  }
  value(formula) {
    return typeof formula === "string" ? workedOut(formula, (name) => this.look(name)) : formula;
  }
  words(text) {
    return text.replace(/\{(\w+)\}/g, (_, name) => {
      const value2 = this.look(name);
      return typeof value2 === "string" ? value2.slice(0, 40) : shown(value2);
    });
  }
  look(name) {
    const { family } = this;
    if (has(this.local, name)) return this.local[name];
    if (has(family.let, name)) return this.value(family.let[name]);
    const value2 = has(this.found.keys, name) ? this.found.keys[name] : null;
    if (value2 !== null && value2 !== void 0) return this.checked(name, value2);
    if (has(family.assumed, name)) return this.assumed[name] = this.value(family.assumed[name]);
    if (has(family.defaults, name)) return this.value(family.defaults[name]);
    throw new MissingKey(spelled(this.found, name));
  }
  checked(name, value2) {
    const { positive, any_number: any } = this.configs.rules, { largest } = this.configs;
    const needed = positive.includes(name) && !Array.isArray(value2);
    if (any.includes(name) || !(typeof value2 === "number" || needed)) return value2;
    const least = Number(needed);
    if (typeof value2 !== "number" || !(value2 >= least && value2 <= largest && Number.isInteger(value2)))
      throw new InputError(`'${spelled(this.found, name)}': expected a whole number from ${least} to ${largest.toLocaleString("en")}, got ${shown(value2)}`);
    return value2;
  }
};
var PASTED = "config-";
function taken(catalog, text) {
  let shape;
  try {
    shape = JSON.parse(text);
  } catch {
    throw new InputError("the link's model is not readable");
  }
  const { kinds, configs: configs2 } = catalog.data;
  if (!isShape(shape, kinds, configs2.deepest)) throw new InputError("the link's model is none");
  let sum = 2166136261;
  for (let i = 0; i < text.length; i++) sum = Math.imul(sum ^ text.charCodeAt(i), 16777619) >>> 0;
  const name = `${PASTED}${sum.toString(16)}`;
  if (!(name in catalog.data.models)) catalog.put(name, shape);
  return name;
}
function isShape(value2, kinds, deepest) {
  const { blocks, order: order2, further, ...sizes } = isTable(value2) ? value2 : {};
  const isSize = (x) => typeof x === "number" && Number.isFinite(x);
  const isPart = (x) => x === void 0 || isTable(x) && Object.hasOwn(kinds, String(x.kind)) && Object.entries(x).every(([name, size]) => name === "kind" || has(kinds[String(x.kind)].fields, name) && isSize(size));
  const isDepth = (x) => isSize(x) && Number(x) >= 0 && Number(x) <= deepest;
  const isBlock = (x) => isTable(x) && isDepth(x.layers) && isPart(x.mixer) && isPart(x.feed);
  const are = (x, each) => Array.isArray(x) && x.length > 0 && x.every(each);
  const count = Array.isArray(blocks) ? blocks.length : 0;
  const isPlace = (x) => Number.isInteger(x) && Number(x) >= 0 && Number(x) < count;
  const laid = order2 === void 0 || typeof order2 === "string" && /^\d+( \d+)*$/.test(order2) && order2.split(" ").every((each) => isPlace(Number(each)));
  return are(blocks, isBlock) && laid && are(further, isPlace) && Object.values(sizes).every(isSize) && ["seq_len", "d_model", "vocab"].every((name) => name in sizes);
}

// job.ts
var valuesOf = (fact) => ({ ...fact.set, ...fact.means });
var about = (fact, names2) => Object.keys(valuesOf(fact)).some((n) => names2.has(n));
var tests = (fact) => Object.entries(fact.when ?? {});
var Job = class {
  constructor(resolver, question) {
    this.resolver = resolver;
    this.question = question;
    const { catalog } = resolver, { first, search, stacks, leaves } = catalog.data;
    const devices = question.need("n_accel");
    const at = { dp: devices, tp: 1, pp: 1, cp: 1, ep: 1, micro_batch: 1 };
    const plain2 = resolver.words(question, at, catalog.knownAs(question.text("accelerator")));
    const { facts } = catalog.stack(question.text("stack"));
    const isFirst = (fact) => about(fact, new Set(first));
    const early = resolver.applied(question, facts.filter(isFirst), plain2);
    const decided = Object.entries(resolver.evaluated(early.values, plain2)).filter(([name]) => !search.asked.includes(name) && name !== "recompute");
    this.known = { ...plain2, ...Object.fromEntries(decided) };
    this.late = facts.filter((fact) => !isFirst(fact));
    this.held = this.thatMayHold([...facts, ...stacks._after.fact].filter((f) => !isFirst(f)));
    const varying = this.depending(search.asked);
    this.leaves = Object.keys(leaves).filter((name) => varying.has(name));
    this.meanings = facts.filter((f) => search.meant.some((n) => n in (f.means ?? {})));
    this.exact = new Set(this.held.flatMap((f) => this.inputs(f)).filter((n) => search.asked.includes(n)));
    const named = /* @__PURE__ */ new Set([...this.held.flatMap((f) => tests(f).map(([n]) => n)), ...this.exact]);
    this.asked = search.asked.filter((name) => named.has(name));
    this.way = String(this.decided({}).stages ?? "counted");
  }
  resolver;
  question;
  known;
  meanings;
  held;
  exact;
  asked;
  late;
  outcomes = /* @__PURE__ */ new Map();
  classes = /* @__PURE__ */ new Map();
  /** Leaves of the plan that differ from layout to layout. */
  leaves;
  way;
  inputs(fact) {
    const { inputs: inputs2 } = this.resolver.catalog.data.search;
    return Object.values(valuesOf(fact)).flatMap((x) => isRule(x) ? inputs2[x.rule] ?? [] : []);
  }
  thatMayHold(facts) {
    const { search, leaves } = this.resolver.catalog.data;
    const open = /* @__PURE__ */ new Set([...search.asked, ...facts.flatMap((f) => Object.keys(valuesOf(f)))]);
    if (Number(this.known.n_experts) <= 1) for (const name of ["ep", "etp"]) open.delete(name);
    const hold = facts.filter((fact) => tests(fact).every(([name, wanted2]) => open.has(name) || this.resolver.facts.test(name, wanted2, this.known[name])));
    const asked = hold.flatMap((f) => tests(f).map(([name]) => name));
    const wanted = /* @__PURE__ */ new Set([...Object.keys(leaves), "stages", ...asked]);
    return hold.filter((fact) => about(fact, wanted));
  }
  /** Names that some fact sets by what it asks of some names, or of what these decide. */
  depending(names2) {
    const found = new Set(names2);
    for (let size = -1; size !== found.size; ) {
      size = found.size;
      for (const fact of this.held) {
        const asks = [...tests(fact).map(([n]) => n), ...this.inputs(fact)];
        if (asks.some((n) => found.has(n))) for (const n of Object.keys(valuesOf(fact))) found.add(n);
      }
    }
    for (const name of names2) found.delete(name);
    return found;
  }
  decided(layout) {
    const { resolver, question } = this, words = { ...this.known, ...layout };
    const late = resolver.applied(question, this.late, words);
    const seen = { ...words, ...resolver.plain(late.values) };
    const settings = new Set(Object.keys(question.settings));
    const after = resolver.facts.apply(resolver.catalog.data.stacks._after.fact, seen, settings);
    const values = resolver.evaluated({ ...late.values, ...after.values }, words);
    return { ...values, ...question.settings };
  }
  /** A number for a value of a name, the same for those that facts treat alike. */
  outcome(name, value2) {
    let known2 = this.outcomes.get(name);
    if (!known2) this.outcomes.set(name, known2 = /* @__PURE__ */ new Map());
    let code = known2.get(value2);
    if (code === void 0) {
      code = this.exact.has(name) ? value2 : this.outcomeOf(name, value2);
      known2.set(value2, code);
    }
    return code;
  }
  seen = /* @__PURE__ */ new Map();
  outcomeOf(name, value2) {
    const each = this.held.flatMap((f) => tests(f)).filter(([n]) => n === name).map(([n, wanted]) => Number(this.resolver.facts.test(n, wanted, value2)));
    const key = `${name} ${each.join("")}`;
    if (!this.seen.has(key)) this.seen.set(key, this.seen.size);
    return this.seen.get(key);
  }
  /** Values of `leaves` for one layout, in their order. */
  values(layout) {
    let key = "";
    for (const name of this.asked) if (name in layout) key += `${this.outcome(name, layout[name])},`;
    let found = this.classes.get(key);
    if (!found) this.classes.set(key, found = this.decided(layout));
    return found;
  }
  /** ZeRO stage, sharding group and sequence parallelism of a layout as its stack takes them. */
  meant(layout) {
    const own2 = { zero: layout.zero, shard: layout.shard, sp: layout.sp };
    if (!this.meanings.length) return own2;
    const { resolver, question } = this, known2 = { ...this.known, ...layout };
    const { asked } = resolver.catalog.data.search;
    const names2 = [...asked, ...Object.keys(question.settings), ...Object.keys(question.columns)];
    const said2 = resolver.facts.apply(this.meanings, known2, new Set(names2)).values;
    const found = { ...own2, ...resolver.evaluated(said2, known2) };
    const shard = Number(found.zero) ? Number(found.shard) : 1;
    return { zero: Number(found.zero), shard, sp: Number(found.sp) };
  }
  get changesMeanings() {
    return this.meanings.length > 0;
  }
  /** Whether facts treat two ZeRO stages unlike. */
  tellsApart(name, one, other) {
    return this.asked.includes(name) && this.outcome(name, one) !== this.outcome(name, other);
  }
  /** The schedule of a pipeline where nothing says it. */
  schedule() {
    return String(this.decided({ pp: 2 }).schedule ?? "1f1b");
  }
  /** How layers lie on stages: `stage_excess` and `head_displaces`. */
  stages(built, pp, interleave, fold2) {
    const { model } = built, whole2 = own(model, "n_layers");
    const head = headCost(own(model, "d_model"), ffWidth(built), own(model, "vocab"));
    const kinds = this.resolver.kinds(built, whole2), further = layers(built) - whole2;
    return stages(this.way, { layers: whole2, head, pp, interleave, further, kinds, fold: fold2 }, []);
  }
};

// space.ts
var known = /* @__PURE__ */ new Map();
function divisors(n) {
  if (!known.has(n)) {
    const small = [];
    for (let d = 1; d * d <= n; d++) if (n % d === 0) small.push(d);
    const large = small.filter((d) => d * d < n).map((d) => n / d).reverse();
    known.set(n, [...small, ...large]);
  }
  return known.get(n);
}
var product = (numbers) => numbers.reduce((a, b) => a * b, 1);
var Space = class {
  constructor(built, job, devices, batch, sizes, choices, usual, flash, placement, rules, counted2) {
    this.built = built;
    this.job = job;
    this.devices = devices;
    this.batch = batch;
    this.sizes = sizes;
    this.choices = choices;
    this.usual = usual;
    this.flash = flash;
    this.placement = placement;
    this.rules = rules;
    this.layers = own(built.model, "n_layers");
    this.length = own(built.model, "seq_len");
    this.experts = Math.trunc(value(built, "n_experts", 1));
    const [split, copied] = [counted2(built, "split"), counted2(built, "copied")];
    this.heads = (tp) => split.every((n) => n % tp === 0) && copied.every((n) => n % tp === 0 || tp % n === 0);
  }
  built;
  job;
  devices;
  batch;
  sizes;
  choices;
  usual;
  flash;
  placement;
  rules;
  layers;
  length;
  experts;
  stagesOf = /* @__PURE__ */ new Map();
  heads;
  get layerCount() {
    return this.layers;
  }
  get sequence() {
    return this.length;
  }
  /** All valid splits of the devices. */
  degrees() {
    const found = [];
    for (const tp of divisors(this.devices)) {
      if (!this.has("tp", tp) || !this.heads(tp) || !this.sp(tp, 1).length) continue;
      for (const cp of divisors(this.devices / tp)) {
        if (!this.has("cp", cp)) continue;
        if (this.length % cp || !this.sp(tp, cp).length) continue;
        for (const pp of divisors(this.devices / (tp * cp))) {
          const dp = this.devices / (tp * cp * pp);
          if (!this.has("pp", pp) || !this.stages(pp)[1].includes(1) || this.batch % dp) continue;
          if (!this.runs(dp, pp).length) continue;
          for (const ep of divisors(this.experts))
            if (this.has("ep", ep) && dp * tp * cp % ep === 0) found.push({ dp, tp, cp, pp, ep });
        }
      }
    }
    return found;
  }
  /** Whether the stack has a degree, or is not asked for it. */
  has(name, degree) {
    return degree === 1 || this.choices.degrees.includes(name);
  }
  sp(tp, cp) {
    if (tp === 1) return [0];
    const splits = this.length % (tp * cp) === 0;
    const allowed = this.experts > 1 ? [1] : [...this.usual.sp].sort((a, b) => b - a);
    return allowed.filter((x) => splits || !x);
  }
  options(split) {
    const [perStage] = this.stages(split.pp);
    return {
      runs: this.runs(split.dp, split.pp),
      recompute: this.recompute(perStage),
      sharding: this.sharding(split),
      sp: this.spTaken(split)
    };
  }
  stages(pp) {
    if (!this.stagesOf.has(pp)) {
      const { layers: layers2 } = this;
      const most = Math.trunc(held({ layers: layers2, pp, interleave: 1, further: 0 })[0]);
      const chunks = Array.from({ length: most }, (_, i) => i + 1);
      const even2 = (v) => this.choices.uneven || layers2 % (pp * v) === 0;
      this.stagesOf.set(pp, [most, chunks.filter((v) => shortBy(layers2, pp, v) === 0 && even2(v))]);
    }
    return this.stagesOf.get(pp);
  }
  spTaken(split) {
    const offered = this.sp(split.tp, split.cp);
    if (!this.job.changesMeanings) return offered;
    const layout = { ...split, etp: 1, zero: 0, shard: 1 };
    return [...new Set(offered.map((sp) => Math.trunc(this.job.meant({ ...layout, sp }).sp)))];
  }
  runs(dp, pp) {
    const share = this.batch / dp, { schedules } = this.choices, chunks = this.stages(pp)[1];
    const batches = divisors(share).filter((b) => Number.isInteger(Math.log2(b)));
    if (pp === 1) return batches.map((b) => ["1f1b", 1, b]);
    const found = [];
    for (const name of schedules) {
      const rules = this.rules[name];
      if (chunks.includes(rules.chunks)) {
        for (const b of batches) if (allows(rules, pp, share / b)) found.push([name, rules.chunks, b]);
      }
    }
    if (!schedules.includes("interleaved")) return found;
    for (const v of schedules.includes("1f1b") ? chunks.slice(1) : chunks)
      for (const b of batches) if (v === 1 || share / b % pp === 0) found.push(["interleaved", v, b]);
    return found;
  }
  recompute(perStage) {
    const rounded = this.usual.recompute.map((r) => even(r * perStage));
    const shares = [...new Set(rounded)].sort((a, b) => a - b);
    const found = shares.map((k) => [k / perStage, 0]);
    return this.flash ? found : [...found.slice(0, 1), [0, 1], ...found.slice(1)];
  }
  sharding(split) {
    const offered = this.offered(split);
    if (!this.job.changesMeanings) return offered;
    const found = /* @__PURE__ */ new Map();
    for (const [zero, shard, reshard] of offered) {
      const taken2 = this.job.meant({ ...split, etp: 1, sp: 0, zero, shard });
      const stage = Math.trunc(taken2.zero);
      const each = [stage, Math.trunc(taken2.shard), stage === 3 ? reshard : 1];
      found.set(each.join(), each);
    }
    return [...found.values()];
  }
  offered(split) {
    const { zero } = this.choices;
    if (split.dp * split.cp === 1) {
      const found = zero.includes(0) ? [[0, 1, 1]] : [];
      if (zero.includes(1) && this.job.tellsApart("zero", 0, 1)) found.push([1, 1, 1]);
      return found.length ? found : [[0, 1, 1]];
    }
    const every = [[0, 1, 1]];
    for (const stage of [1, 2]) every.push([stage, split.dp, 1]);
    for (const shard of [split.dp, ...this.shards(split)])
      for (const reshard of [1, 0]) every.push([3, shard, reshard]);
    return every.filter(([stage]) => zero.includes(stage));
  }
  /** Sharding groups below dp that fill a domain of the network. */
  shards(split) {
    const order2 = this.placement;
    const inside = order2.slice(0, order2.indexOf("dp")).filter((name) => name !== "ep");
    const stride = product(inside.map((name) => split[name]));
    const sizes = this.sizes.filter((size) => size % stride === 0).map((size) => size / stride);
    return divisors(split.dp).slice(1, -1).filter((s) => sizes.includes(s) && s * split.cp * split.tp % split.ep === 0);
  }
};
function even(x) {
  const found = Math.round(x);
  return found - x === 0.5 && found % 2 !== 0 ? found - 1 : found;
}

// search.ts
var USUAL = ["1f1b", "interleaved"];
var CHOSEN = [
  "dp",
  "tp",
  "cp",
  "pp",
  "ep",
  "etp",
  "sp",
  "interleave",
  "micro_batch",
  "zero",
  "shard",
  "reshard",
  "recompute_layers",
  "recompute_attention",
  "stage_excess",
  "head_displaces"
];
var Search = class {
  constructor(model) {
    this.model = model;
  }
  model;
  /** The `top` plans of least step time whose memory fits at the usual risk. Columns and settings of
   * the layout are left to the search. */
  best(asked, top, tell = () => {
  }) {
    const { catalog } = this.model, { search } = catalog.data;
    const open = Object.entries(asked.columns).filter(([name]) => !search.open.includes(name));
    const job = new Question(Object.fromEntries(open), asked.settings, asked.system);
    const alone = job.having({ global_batch: job.need("n_accel") });
    const { found, whole: whole2 } = this.model.records(alone, true);
    const own2 = this.model.resolver.completed(job), of = new Job(this.model.resolver, own2);
    const base = this.base(whole2.case);
    const sizes = [];
    base.cluster.network.size.reduce((all, size) => (sizes.push(all * size), all * size), 1);
    const devices = job.need("n_accel"), batch = job.need("global_batch");
    if (devices > sizes[sizes.length - 1])
      throw new InputError(`the network has ${sizes[sizes.length - 1]} devices; got ${devices}`);
    const plan = base.plan;
    const offered = this.choices(of, own2), known2 = [...USUAL, of.schedule()];
    const left = offered.schedules.filter((name) => !known2.includes(name));
    const searched = { ...offered, schedules: offered.schedules.filter((name) => !left.includes(name)) };
    const space = new Space(
      found.built,
      of,
      devices,
      batch,
      sizes.filter(Number.isFinite),
      searched,
      search,
      Boolean(plan.software.flash),
      ["tp", "cp", "ep", "dp", "pp"],
      catalog.data.schedules,
      (built, mark) => this.counted(built, mark)
    );
    const batched = { ...base, plan: { ...base.plan, global_batch: batch } };
    const program = this.program(found.built, batched, whole2.spread);
    const result = this.over(space, of, found.built, program, whole2.spread, base.cluster.chip.hbm_bytes, top, tell);
    return { ...result, left };
  }
  counted(built, mark) {
    const { kinds } = this.model.catalog.data;
    const names2 = [...built.kinds.mixers, ...built.kinds.feeds];
    return parts(built).flatMap((part, i) => kinds[names2[i]][mark].map((name) => part[name]));
  }
  /** What all plans share: nothing is done again, nor waits in host memory, unless said. */
  base(of) {
    const { search, neutral } = this.model.catalog.data;
    const layout = { ...of.plan.layout, stage_excess: 0, head_displaces: 0 };
    const software = { ...of.plan.software, last_kept: 0 };
    for (const name of search.neutral) layout[name] = neutral[name];
    return { ...of, plan: { ...of.plan, layout, software } };
  }
  choices(job, question) {
    const { search } = this.model.catalog.data;
    const runs = this.model.catalog.runs(question.text("stack"));
    const said2 = search.zero.filter((z) => (runs.zero ?? search.zero).includes(z));
    const devices = question.need("n_accel"), taken2 = /* @__PURE__ */ new Set();
    const one = [1, 2];
    for (const zero of said2) for (const tp of one) for (const pp of one) for (const cp of one)
      for (const ep of one) for (const sp of [0, 1])
        taken2.add(Math.trunc(job.meant({
          dp: devices,
          tp,
          pp,
          cp,
          ep,
          etp: 1,
          sp,
          zero,
          shard: zero ? devices : 1,
          interleave: 1,
          micro_batch: 1,
          replicas: zero ? 1 : devices
        }).zero));
    const known2 = runs.schedules ?? search.schedules;
    const schedules = search.schedules.filter((name) => known2.includes(name));
    return {
      zero: [...taken2].sort((a, b) => a - b),
      schedules: schedules.length ? schedules : known2,
      degrees: search.degrees.filter((name) => (runs.degrees ?? search.degrees).includes(name)),
      uneven: runs.uneven ?? search.uneven
    };
  }
  program(built, base, spread) {
    const { evaluated } = this.model.programsOf(structure(built, base.cluster.network.size.length));
    const x = inputs(evaluated, { case: base, spread });
    const y = new Float64Array(evaluated.outputs.length), { homes } = this.model.catalog.data;
    const place = new Map(evaluated.inputs.map((path, i) => [path, i]));
    return {
      x,
      y,
      run: () => evaluated.run[0](x, y),
      at: (leaf) => place.get(`case.plan.${homes[leaf]}.${leaf}`) ?? -1,
      out: (name) => evaluated.outputs.indexOf(name)
    };
  }
  over(space, job, built, program, spread, room, top, tell) {
    const { search, leaves, schedules, mixed } = this.model.catalog.data;
    const ofMix = Object.keys(mixed);
    const share = Math.exp(spread * search.deviations), { x, y } = program;
    const splits = space.degrees().map((split) => ({ split, of: space.options(split) }));
    const total = splits.reduce((sum, { of }) => sum + of.runs.length * of.recompute.length * of.sharding.length * of.sp.length, 0);
    const ranks = new Ranks(top, search.plainness, search.digits, Object.keys(schedules));
    const [time, memory, mfu, risk] = ["outputs.step_time_s", "outputs.memory_bytes", "outputs.mfu", "oom_probability"].map(program.out);
    const decided = job.leaves.map((name) => [name, program.at(name)]);
    const place = Object.fromEntries([...CHOSEN, ...ofMix].map((name) => [name, program.at(name)]));
    const layers2 = place.recompute_layers, cores = place.recompute_attention;
    const lain = /* @__PURE__ */ new Map(), most = room * share;
    let considered = 0, feasible = 0, closest = null, now = USUAL[0];
    const take = () => ({
      layout: Object.fromEntries(CHOSEN.map((name) => [name, x[place[name]]])),
      schedule: now,
      seconds: y[time],
      bytes: y[memory],
      mfu: y[mfu],
      risk: y[risk]
    });
    const set = (layout) => {
      for (const name of CHOSEN) if (name in layout) x[place[name]] = layout[name];
    };
    const judge = () => {
      program.run();
      considered += 1;
      if (y[memory] <= most) {
        feasible += 1;
        ranks.add(y[time], take);
      } else if (!feasible && (closest === null || y[memory] < closest.bytes)) closest = take();
    };
    for (const { split, of } of splits) {
      const { dp, pp } = split;
      for (const [schedule, interleave, micro_batch] of of.runs) {
        const { fold: fold2 } = schedules[schedule], key = `${pp} ${interleave} ${fold2}`;
        if (!lain.has(key)) lain.set(key, job.stages(built, pp, interleave, fold2));
        for (const name of ofMix) x[place[name]] = Number(mixed[name] === schedule);
        now = schedule;
        const [stage_excess, head_displaces] = lain.get(key);
        for (const sp of of.sp) for (const [zero, shard, reshard] of of.sharding) {
          const ranksOfShard = zero > 0 ? Math.max(shard, 1) : 1;
          const layout = { ...split, etp: 1, sp, zero, shard, interleave, micro_batch };
          set({ ...layout, reshard, stage_excess, head_displaces });
          if (decided.length) {
            const own2 = job.values({
              ...layout,
              shard: ranksOfShard,
              replicas: dp / ranksOfShard,
              devices: space.devices,
              stage_layers: space.layerCount / pp,
              seq_len: space.sequence
            });
            for (const [name, at] of decided) x[at] = Number(own2[name] ?? leaves[name]);
          }
          for (const [again2, core] of of.recompute) {
            x[layers2] = again2;
            x[cores] = core;
            judge();
          }
        }
      }
      tell(considered, total);
    }
    return { plans: ranks.best, considered, feasible, closest: feasible ? null : closest, share };
  }
};
var Ranks = class {
  constructor(top, plainness, digits, schedules) {
    this.top = top;
    this.plainness = plainness;
    this.digits = digits;
    this.schedules = schedules;
  }
  top;
  plainness;
  digits;
  schedules;
  best = [];
  keys = [];
  rounded(merit) {
    const scale = 10 ** (Math.floor(Math.log10(merit)) - this.digits + 1);
    return Math.round(merit / scale) * scale;
  }
  add(seconds, take) {
    const merit = this.rounded(seconds), last = this.keys[this.keys.length - 1];
    if (this.keys.length === this.top && merit > last[0]) return;
    const found = take(), key = [merit, ...this.plainness.map((name) => {
      if (name === "schedule") return this.schedules.indexOf(found.schedule);
      const value2 = found.layout[name.replace("-", "")] ?? 0;
      return name.startsWith("-") ? -value2 : value2;
    })];
    let place = this.keys.length;
    while (place > 0 && before(key, this.keys[place - 1])) place -= 1;
    this.keys.splice(place, 0, key);
    this.best.splice(place, 0, found);
    this.keys.length = this.best.length = Math.min(this.keys.length, this.top);
  }
};
function before(a, b) {
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return a[i] < b[i];
  return false;
}

// unfolded.ts
var BODY = "function f";
var FIRST = "ABCDEFGHJKLMOPQRSTUVWXYZ$_";
var LATER = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
function nameOf(number3) {
  let text = FIRST[number3 % FIRST.length], left = Math.floor(number3 / FIRST.length);
  for (; left; left = Math.floor((left - 1) / LATER.length)) text += LATER[(left - 1) % LATER.length];
  return text;
}
function joined(text, base) {
  let end = 0;
  return text.replace(/~(-?\d+),(\d+)~/g, (_, ahead, many) => {
    const start = end + Number(ahead);
    end = start + Number(many);
    return base.slice(start, end);
  });
}
function unfolded(text) {
  const homes = [], starts = [], kept = /* @__PURE__ */ new Map(), tails = [];
  const across = (at) => {
    let slot = kept.get(at);
    if (slot === void 0) {
      kept.set(at, slot = kept.size);
      tails[homes[at]] += `t[${slot}]=+${nameOf(at - starts[homes[at]])};`;
    }
    return `t[${slot}]`;
  };
  const lines = text.split("\n").map((line, home) => {
    starts[home] = homes.length;
    tails[home] = "";
    if (!line.startsWith(BODY)) {
      kept.clear();
      return line;
    }
    return line.replace(/@|#(\d+)/g, (_, back) => {
      if (back === void 0) return `const ${nameOf(homes.push(home) - 1 - starts[home])}=`;
      const at = homes.length - Number(back);
      return at >= starts[home] ? nameOf(at - starts[home]) : across(at);
    });
  });
  return lines.map((line, home) => tails[home] ? `${line.slice(0, -1)}${tails[home]}}` : line).join("\n");
}

// cases.ts
var infinite = (_, value2) => value2 === "inf" ? Infinity : value2;
function compiled(texts, compile) {
  const made = /* @__PURE__ */ new Map();
  return (name) => {
    if (!made.has(name)) {
      if (!(name in texts)) throw new InputError(`no program for ${name}`);
      const of = Object.entries(texts[name]).map(([key, one]) => [key, { ...one, run: compile(one.text) }]);
      made.set(name, Object.fromEntries(of));
    }
    return made.get(name);
  };
}
function answers(data, texts, usual, asked, compile) {
  const programs = compiled(texts, compile);
  const resolver = new Resolver(new Catalog(data), programs, usual);
  return asked.map((each) => {
    try {
      const found = resolver.resolve(new Question(each.columns, each.settings, each.system));
      const of = programs(structure(found.built, found.case.cluster.network.size.length)).evaluated;
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
function best(given, asked, top, compile) {
  const model = new Model(given.data, given.profile, compiled(given.texts, compile));
  const search = new Search(model);
  return asked.map(({ columns, settings, system }) => {
    const start = performance.now(), found = search.best(new Question(columns, settings, system), top);
    return { ...found, milliseconds: performance.now() - start };
  });
}
function configs(data, texts) {
  const reader = new Reader(data.configs, data.kinds);
  return texts.map((text) => {
    try {
      const found = reader.read(text);
      taken(new Catalog(structuredClone(data)), JSON.stringify(found.shape));
      return found;
    } catch (error) {
      if (error instanceof InputError) return { error: error.message };
      throw error;
    }
  });
}
