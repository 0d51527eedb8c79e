// A question to the network, kept in the address bar.

import { call, cli, html, quote, useEffect, useMemo, useState, Elsewhere, Empty, Failed, Heading, shown, where, go } from './lib.js';
import { World, Picked, OfferTable, offerHead, Legend } from './map.js';
import { cities } from './cities.js';

const fields = [
  ['type', 'type', { options: ['compute', 'storage', 'bandwidth', 'cdn'] }],
  ['near', 'near', { list: 'cities', hint: 'Berlin or 52.5,13.4' }],
  ['radius_km', 'within, km', { type: 'number', min: 1, hint: '2500' }],
  ['max_price', 'price, at most', { type: 'number', min: 0, step: 'any', hint: '2.50' }],
  ['require_gpu', 'with a GPU', { check: true }],
];

const rare = [
  ['currency', 'currency', { hint: 'USDC' }],
  ['price_unit', 'price unit', { hint: 'per-hour' }],
  ['countries', 'countries', { hint: 'DE,FR' }],
  ['min_cpu_cores', 'CPU cores, at least', { type: 'number', min: 0 }],
  ['min_memory_mb', 'memory MB, at least', { type: 'number', min: 0 }],
  ['min_storage_gb', 'storage GB, at least', { type: 'number', min: 0 }],
  ['min_bandwidth_mbps', 'Mbit/s, at least', { type: 'number', min: 0 }],
  ['min_uptime', 'uptime %, at least', { type: 'number', min: 0, max: 100, step: 'any' }],
  ['where', 'condition', { hint: 'compute.gpus.model^=H100' }],
  ['sort', 'order', { options: ['', 'distance', 'price', 'uptime', 'response_time', 'score'], none: 'distance or score' }],
];

// plain is a name in lower case without accents.
const plain = (name) => name.normalize('NFD').replace(/\p{M}/gu, '').replaceAll('ı', 'i').replaceAll('ł', 'l').toLowerCase();

// placed turns the name of a city into its place.
function placed(values) {
  const q = new URLSearchParams(values);
  const near = (q.get('near') || '').trim();
  const wanted = plain(near);
  const city = cities.find(([name]) => plain(name) === wanted) ?? cities.find(([name]) => plain(name).startsWith(wanted + ' '));
  if (city) q.set('near', `${city[1]},${city[2]}`);
  return q;
}

function discOf(q) {
  const [lat, lon] = (q.get('near') || '').split(',').map(Number);
  const km = Number(q.get('radius_km'));
  return Number.isFinite(lat) && Number.isFinite(lon) && km > 0 ? { lat, lon, km } : null;
}

const asOffer = r => {
  const m = r.record.metadata || {}, l = r.record.location || {}, p = r.record.pricing || {};
  return {
    key: r.record.key, id: r.record.id, provider_id: r.record.provider_id, type: m.type, subtype: m.subtype, name: m.name,
    latitude: l.latitude, longitude: l.longitude, city: l.city, country: l.country, price: p.base_price, currency: p.currency, price_unit: p.price_unit,
    updated_at: r.record.updated_at, expires_at: r.record.expires_at, measured: r.peer, endpoint: r.endpoint, doubts: r.doubts, distance_km: r.distance_km, score: r.score ?? 0, parts: r.explain || [],
  };
};

// A field keeps what the reader types while live changes draw the page again: its element is given its first value only.
function Field({ name, label, options: o, values }) {
  const id = `q-${name}`, value = values.get(name) ?? '';
  if (o.check) return html`<label class="check"><input type="checkbox" name=${name} value="true" defaultChecked=${value === 'true'} /> ${label}</label>`;
  return html`<label for=${id}>${label}${o.options
    ? html`<select id=${id} name=${name}>${o.options.map(t => html`<option value=${t} selected=${t === value}>${t || o.none}</option>`)}</select>`
    : html`<input id=${id} name=${name} defaultValue=${value} type=${o.type || 'text'} min=${o.min} max=${o.max} step=${o.step} list=${o.list} placeholder=${o.hint} autocomplete="off" />`}</label>`;
}

export function commandOf(q) {
  const flags = { min_cpu_cores: 'min-cpu', countries: 'country', radius_km: 'radius' };
  return cli(['offer find', ...[...q].map(([k, v]) => (k === 'require_gpu' ? '--gpu' : `--${flags[k] || k.replaceAll('_', '-')} ${quote(v)}`))].join(' '));
}

// goOf is the question for package client. URL parameters are its shortest form.
export function goOf(q) {
  const pairs = [...new Set(q.keys())].map(k => `${JSON.stringify(k)}: {${q.getAll(k).map(v => JSON.stringify(v)).join(', ')}}`);
  return `q, err := query.ParseValues(url.Values{${pairs.join(', ')}}) // then: answer, err := c.Query(ctx, q)`;
}

export function SearchView() {
  const { values } = where();
  const asked = values.toString();
  const [state, set] = useState({});
  const [picked, pick] = useState(null);
  const q = placed(values);
  useEffect(() => {
    pick(null);
    if (!asked) { set({}); return undefined; }
    let gone = false;
    set(old => ({ ...old, loading: true }));
    call('GET', `/v1/discovery/query?${q}&explain=true`).then(answer => gone || set({ answer }), error => gone || set({ error }));
    return () => { gone = true; };
  }, [asked]);
  const submit = e => {
    e.preventDefault();
    const next = new URLSearchParams();
    for (const [k, v] of new FormData(e.target)) if (String(v).trim()) next.append(k, String(v).trim());
    go('search', next);
  };
  const list = useMemo(() => (state.answer?.results || []).map(asOffer), [state.answer]);
  const disc = useMemo(() => discOf(q), [asked]);
  const curl = `curl ${quote(`${location.origin}/v1/discovery/query?${q}`)}`;
  const form = of => of.map(([name, label, options]) => html`<${Field} ...${{ name, label, options, values }} />`);
  return html`<${Heading} title="Search">Ask all peers for offers. Every filter is optional, and the question stays in the address bar.<//>
    <form class="filters" onSubmit=${submit} key=${asked}>
      ${form(fields)}
      <datalist id="cities">${cities.map(([name]) => html`<option value=${name}></option>`)}</datalist>
      <details class="rare" open=${rare.some(([name]) => values.has(name))}><summary>More filters</summary><div class="filters">${form(rare)}</div></details>
      <div class="actions"><button type="submit" class="primary">Search</button><button type="button" onClick=${() => go('search')}>Clear</button></div>
    </form>
    <${Failed} error=${state.error} />
    ${!asked && html`<${Empty} title="Ask for something" command=${cli('offer find --type compute --near 52.5,13.4 --max-price 2')}>Choose a type and press Search, for example compute near Berlin, at most 2.<//>`}
    ${state.answer && html`<div aria-live="polite"><h3>${list.length} of ${state.answer.total ?? list.length} offers ${state.answer.complete === false ? html`<span class="badge wait">incomplete</span>` : html`<span class="badge good">complete</span>`}</h3>
      ${state.answer.incomplete_reason && html`<p class="quiet">${shown(state.answer.incomplete_reason, 300)}</p>`}</div>
      ${list.length === 0 ? html`<${Empty} title="Nothing matches" command=${cli(`offer find --type ${values.get('type') || 'compute'}`)}>Widen the radius or the price, or drop a filter.<//>
      ${state.answer.notes?.length > 0 && html`<h4>How the peer understood it</h4><ul class="plain">${state.answer.notes.map(line => html`<li>${shown(line, 200)}</li>`)}</ul>`}` : html`
      <${Legend} offers=${list} /><${World} offers=${list} disc=${disc} onPick=${pick} label=${`World map with ${list.length} results; the table below lists them`}><${Picked} offers=${picked} onPick=${pick} /><//>
      <${OfferTable} label="Results" head=${[...offerHead.slice(0, 4), 'distance', 'score', 'provider']} offers=${list} onPick=${pick} />`}`}
    ${asked && html`<${Elsewhere} commands=${[curl, commandOf(q), goOf(q)]} />`}`;
}
