/** Coefficients of a chip and stack (dmodel/profiles/record.py). */

import type { Catalog, Table } from "./catalog";

export interface Fitted { footprint: Table<number>; spread: number }
export interface Profile {
  name: string; shares: boolean[]; names: string[]; center: number[];
  offsets: Table<Table<number[]>>;
  footprints: Table<Fitted>; least: Fitted; variants: number;
}

/** What a stack holds in memory; of a variant that nobody has measured, that of its family. */
export function footprintOf(profile: Profile, family: string, variant: string): Fitted {
  const own = profile.footprints[variant ? `${family}/${variant}` : family];
  if (own) return own;
  const alike = profile.footprints[`${family}/*`];
  if (!alike) return profile.least;
  return { ...alike, spread: Math.hypot(alike.spread, profile.variants) };
}

function lineage(catalog: Catalog, family: string): string {
  const seen = (id: string): string => {
    const file = catalog.data.stacks[id];
    if (!file) return "";
    if (file.lineage) return file.lineage;
    for (const name of file.extends) {
      const found = seen(catalog.knownFamily(name.split("/")[0])?.[1] ?? name);
      if (found) return found;
    }
    return "";
  };
  const known = catalog.knownFamily(family);
  return (known && seen(known[1])) || (known ? known[0] : family);
}

/** The member of every grouping for a chip and a stack. */
export function members(catalog: Catalog, accelerator: string, stack: string): Table<string> {
  const main = catalog.known("chips", accelerator);
  const chip = main === undefined ? accelerator : catalog.knownAs(main);
  const generation = catalog.generation(chip);
  const of = stack ? catalog.stack(stack) : null;
  const name = of?.basis ?? "";
  const both = Boolean(chip && name);
  return {
    generation, accelerator: chip, lineage: name ? lineage(catalog, name) : "", stack: name,
    variant: of?.variant ? `${name}/${of.variant}` : "",
    port: both ? `${generation || chip} ${name}` : "", pair: both ? `${chip} ${name}` : "",
  };
}

export function coefficients(profile: Profile, of: Table<string>): Table<number> {
  const found: Table<number> = {};
  profile.names.forEach((name, i) => {
    let z = profile.center[i];
    for (const [grouping, member] of Object.entries(of))
      z += profile.offsets[grouping]?.[member]?.[i] ?? 0;
    found[name] = profile.shares[i] ? 1 / (1 + Math.exp(-z)) : Math.exp(z);
  });
  return found;
}
