// A form from a JSON Schema: fields for scalars, groups for objects, lists with buttons; the JSON text stays beside it.

import { html, nothing } from "./vendor/lit-html.js";

const DEEPEST = 6;

function resolved(schema, root, all) {
  for (let turn = 0; schema?.$ref && turn < 5; turn += 1) {
    const [address, pointer] = schema.$ref.split("#");
    const document = address ? Object.values(all).find((one) => one.$id === new URL(address, root.$id).href) : root;
    const keys = (pointer ?? "").split("/").filter(Boolean).map((key) => key.replaceAll("~1", "/").replaceAll("~0", "~"));
    schema = keys.reduce((at, key) => at?.[key], document);
    root = document;
  }
  const option = schema?.anyOf?.[0] ?? schema?.oneOf?.[0];
  return option && !schema.type && !schema.properties ? resolved(option, root, all) : [schema ?? {}, root];
}

const typeOf = (schema) => (Array.isArray(schema.type) ? schema.type.find((one) => one !== "null") : schema.type)
  ?? (schema.properties ? "object" : schema.enum || schema.const !== undefined ? "string" : undefined);

export function sampleOf(schema, all, root = schema, depth = 0) {
  const versions = Object.entries(schema.properties ?? {}).flatMap(([key, one]) => (one.const === undefined ? [] : [[key, one.const]]));
  [schema, root] = resolved(schema, root, all);
  if (schema.const !== undefined) return schema.const;
  if (schema.default !== undefined) return schema.default;
  const example = schema.examples?.[0]; // shared by all versions, so it names none
  if (example !== undefined) return versions.length ? { ...Object.fromEntries(versions), ...example } : example;
  if (schema.enum?.length) return schema.enum[0];
  switch (typeOf(schema)) {
    case "object":
      return Object.fromEntries((schema.required ?? []).map((key) =>
        [key, depth < DEEPEST ? sampleOf(schema.properties?.[key] ?? {}, all, root, depth + 1) : null]));
    case "array":
      return Array.from({ length: schema.minItems ?? 0 }, () => sampleOf(schema.items ?? {}, all, root, depth + 1));
    case "integer": case "number":
      return schema.minimum ?? 0;
    case "boolean":
      return false;
    default:
      return "";
  }
}

// `give` is called with the whole document after each change.
export function form(schema, document, give, all, root = schema, title = "", depth = 0) {
  if (!schema) return nothing;
  [schema, root] = resolved(schema, root, all);
  const type = typeOf(schema);
  if (type === "object" && schema.properties && depth < DEEPEST) {
    const content = document && typeof document === "object" ? document : {};
    const set = (key) => (value) => give({ ...content, [key]: value });
    const without = (key) => give(Object.fromEntries(Object.entries(content).filter(([other]) => other !== key)));
    const required = new Set(schema.required ?? []);
    return html`<fieldset><legend>${title}</legend>${Object.entries(schema.properties).map(([key, one]) =>
      key in content || required.has(key)
        ? html`${form(one, content[key], set(key), all, root, key, depth + 1)}${required.has(key) ? nothing
          : html`<button type="button" aria-label=${`Remove ${key}`} @click=${() => without(key)}>Remove ${key}</button>`}`
        : html`<button type="button" @click=${() => set(key)(sampleOf(one, all, root))}>Add ${key}</button>`)}</fieldset>`;
  }
  if (type === "array" && schema.items && depth < DEEPEST) {
    const content = Array.isArray(document) ? document : [];
    const item = (one, at) => form(schema.items, one, (value) => give(content.with(at, value)), all, root, `${title} ${at + 1}`, depth + 1);
    return html`<fieldset><legend>${title}</legend>${content.map((one, at) => html`${item(one, at)}
      <button type="button" aria-label=${`Remove ${title} ${at + 1}`} @click=${() => give(content.toSpliced(at, 1))}>Remove</button>`)}
      <button type="button" @click=${() => give([...content, sampleOf(schema.items, all, root)])}>Add to ${title}</button></fieldset>`;
  }
  const changed = (read) => (event) => give(read(event.target));
  const note = schema.description ? html` <small>${schema.description}</small>` : nothing;
  if (schema.enum) {
    const options = schema.enum.map((one) => html`<option ?selected=${one === document}>${one}</option>`);
    return html`<label>${title} <select @change=${changed((one) => schema.enum[one.selectedIndex])}>${options}</select>${note}</label>`;
  }
  if (type === "boolean") {
    const box = html`<input type="checkbox" .checked=${document === true} @change=${changed((one) => one.checked)}>`;
    return html`<label>${box} ${title}${note}</label>`;
  }
  if (type === "integer" || type === "number") {
    const read = changed((one) => (one.value === "" ? null : Number(one.value)));
    const step = type === "integer" ? 1 : "any";
    return html`<label>${title} <input type="number" step=${step} .value=${document ?? ""} @change=${read}>${note}</label>`;
  }
  if (type === "string" && (document === undefined || document === null || typeof document === "string"))
    return html`<label>${title} <input type="text" .value=${document ?? ""} @change=${changed((one) => one.value)}>${note}</label>`;
  return html`<p><small>${title}: in the JSON text</small></p>`;
}
