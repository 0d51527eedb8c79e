// A question to the network, kept in the address bar.

import { asOffer, call, cli, colour, html, quote, useEffect, useMemo, useState, Badge, Elsewhere, Empty, Failed, Heading, Price, Text, Whole, shown, where, go } from './lib.js';
import { World, Picked, scoreOf, whatOf } from './map.js';
import { cities } from './cities.js';
import { live, peopled, tap } from './live.js';
import { Topology } from './topology.js';
import { counted, placeOf } from './words.js';

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
  ['domain', 'checked domain', { hint: 'shop.example.com or *' }],
  ['where', 'condition', { hint: 'compute.gpus.model^=H100' }],
  ['sort', 'order', { options: ['', 'distance', 'price', 'uptime', 'response_time', 'score'], none: 'distance or score' }],
];

// placed turns the name of a city into its place. Without such a city the question asks nobody.
function placed(values) {
  const q = new URLSearchParams(values), text = (q.get('near') || '').trim(), place = text ? placeOf(text) : undefined;
  if (place) q.set('near', place.point);
  return { q, text, place, lost: Boolean(text) && !place };
}

// Meant says which city a name with an error was taken for, and offers the others.
function Meant({ text, place, lost, values }) {
  const near = city => { const next = new URLSearchParams(values); next.set('near', city); go('search', next); };
  if (lost) return html`<p class="failed" role="alert">No city is called “${shown(text, 40)}”. Write a city in English, or latitude and longitude such as 52.5,13.4.</p>`;
  return place?.meant && html`<p class="meant" role="status">No city is called “${shown(text, 40)}”: this is near <b>${place.city}</b>.${place.meant.length > 1 && html` Did you mean ${place.meant.slice(1).map(city => html`<button type="button" class="link" onClick=${() => near(city)}>${city}</button> `)}?`}</p>`;
}

function discOf(q) {
  const [lat, lon] = (q.get('near') || '').split(',').map(Number);
  const km = Number(q.get('radius_km'));
  return Number.isFinite(lat) && Number.isFinite(lon) && km > 0 ? { lat, lon, km } : null;
}

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

const filters = { // names of the form, by the word for them
  radius: ['near', 'radius_km'], price: ['max_price', 'currency', 'price_unit'], country: ['countries'], uptime: ['min_uptime'], condition: ['where'],
  capacity: ['require_gpu', 'min_cpu_cores', 'min_memory_mb', 'min_storage_gb', 'min_bandwidth_mbps'],
};

// whyNothing says how many offers each filter leaves out, as the command line does.
async function whyNothing(q) {
  const ask = more => call('GET', `/v1/discovery/query?${new URLSearchParams({ type: q.get('type') || '', health: 'any', limit: 1, exact_total: true, ...more })}`);
  const all = (await ask({})).total;
  if (!all) return `No peer offers ${q.get('type')}.`;
  const left = await Promise.all(Object.entries(filters).map(async ([word, names]) => {
    const given = Object.fromEntries(names.filter(n => q.has(n)).map(n => [n, q.get(n)]));
    if (!Object.keys(given).length || (word === 'radius' && !given.radius_km) || (word === 'price' && !given.max_price)) return '';
    const kept = (await ask(given)).total;
    if (kept >= all) return '';
    const far = word === 'radius' && kept === 0 && (await ask({ near: given.near, sort: 'distance' })).results[0]?.distance_km;
    return `${all - kept} by ${word}${far ? ` (the nearest is ${far.toFixed(0)} km away)` : ''}`;
  }));
  const said = left.filter(Boolean).join(', ');
  return `${counted(all, 'offer')} of type ${q.get('type')}, none passes${said ? `; left out: ${said}` : ' all filters together'}.`;
}

function Nothing({ q, notes }) {
  const [why, set] = useState('');
  useEffect(() => {
    let gone = false;
    whyNothing(q).then(text => gone || set(text), () => {}); // the answer stands without it
    return () => { gone = true; };
  }, [q.toString()]);
  const understood = (notes || []).filter(line => !line.startsWith('left out '));
  return html`<${Empty} title="Nothing matches" command=${cli(`offer find --type ${q.get('type') || 'compute'}`)}>${shown(why, 300) || 'Widen the radius or the price, or drop a filter.'}<//>
    ${understood.length > 0 && html`<h4>How the peer understood it</h4><ul class="plain">${understood.map(line => html`<li>${shown(line, 200)}</li>`)}</ul>`}`;
}

// placeIn is the place of an offer, if its name does not say it.
const placeIn = o => [o.city, o.country].filter(Boolean).filter(part => !(o.name || o.id).includes(part)).join(', ');

// Columns of the results with the value to sort by, and what they mean; the peer's order is the first.
const columns = [['#', o => o.number], ['offer', o => o.name || o.id], ['what', whatOf], ['measured', o => ['answers', 'closed', 'unmeasured', undefined].indexOf(o.endpoint?.state) + 1 || 9], ['price', o => o.price], ['distance', o => o.distance_km], ['score', o => -o.score, 'Of 100 points: health 40, price 30, speed 20, place 10. What peers measured earns them; claims earn none. Choose an offer to see why.']];
const mostRows = 50;

// Measured says what was found at an endpoint.
const Measured = ({ of: e }) => html`<${Badge} tone=${e?.state === 'answers' ? 'UP' : e?.state === 'closed' ? 'STARTING' : e?.checked_at ? 'DOWN' : 'off'}>${e?.state || 'unmeasured'}<//>`;

function Results({ offers, picked, onPick }) {
  const [order, sort] = useState({ by: 0, down: false });
  const [most, show] = useState(mostRows);
  const value = columns[order.by][1], turn = order.down ? -1 : 1;
  const compare = (a, b) => {
    const x = value(a), y = value(b);
    if (x === undefined || y === undefined) return (x === undefined) - (y === undefined); // the unknown last
    return turn * (x < y ? -1 : x > y ? 1 : 0);
  };
  const list = [...offers].sort(compare);
  const least = key => offers.reduce((best, o) => (o[key] !== undefined && !(best?.[key] <= o[key]) ? o : best), undefined);
  const alike = new Set(offers.map(o => `${o.currency} ${o.price_unit}`)).size === 1;
  const nearest = offers.length > 1 && least('distance_km'), cheapest = offers.length > 1 && alike && least('price');
  const choose = by => sort(old => ({ by, down: old.by === by && !old.down }));
  return html`<div><div class="scroll" tabindex="0" role="region" aria-label="Results"><table>
    <thead><tr>${columns.map(([title, , told], by) => html`<th scope="col" class=${['what', 'score', 'measured'].includes(title) && 'extra'} title=${told} aria-sort=${order.by !== by ? undefined : order.down ? 'descending' : 'ascending'}><button type="button" class="sort" onClick=${() => choose(by)}>${title}${order.by === by ? (order.down ? ' ↓' : ' ↑') : ''}</button></th>`)}</tr></thead>
    <tbody>${list.slice(0, most).map(o => html`<tr key=${o.key} class=${picked?.length === 1 && picked[0].key === o.key && 'chosen'}><td class="number"><i class="dot" style=${{ background: colour(o.type) }}></i>${o.number}</td>
      <td class="cut"><button type="button" class="link" onClick=${() => onPick([o])}><${Text} most=${40}>${o.name || o.id}<//></button> <span class="quiet"><${Text} most=${30}>${placeIn(o)}<//></span><span class="quiet small"><${Text} most=${60}>${whatOf(o)}<//></span></td>
      <td class="cut extra"><${Text} most=${60}>${whatOf(o) || '–'}<//></td>
      <td class="extra"><${Measured} of=${o.endpoint} /></td>
      <td class=${`number ${o === cheapest ? 'best' : ''}`} title=${o === cheapest ? 'the cheapest here' : undefined}><${Price} of=${o} /></td>
      <td class=${`number ${o === nearest ? 'best' : ''}`} title=${o === nearest ? 'the nearest here' : undefined}>${o.distance_km === undefined ? '–' : `${o.distance_km.toFixed(0)} km`}</td><td class="number extra" title=${scoreOf(o)}>${o.score.toFixed(1)}</td></tr>`)}</tbody></table></div>
    ${offers.length > most && html`<p class="quiet">The first ${most} of ${offers.length}. <button type="button" onClick=${() => show(most + 2 * mostRows)}>Show more</button></p>`}</div>`;
}

// Asked tells which peers were asked, and lets the question fly to them and back.
function Asked({ answer }) {
  const [open, set] = useState(false);
  const notes = answer.notes || [], peers = [...new Set(notes.map(line => /\basked (12D3KooW\w{44}) about/.exec(line)?.[1]).filter(Boolean))];
  const fly = useMemo(() => () => peers.forEach(id => tap.send('query', [live.status?.peer_id, id, live.status?.peer_id], 'question and answer')), [answer]);
  return html`<details class="asked" onToggle=${e => set(e.target.open)}><summary>${peers.length ? `Asked ${counted(peers.length, 'peer')}` : 'Answered by this peer alone'} in ${+(answer.took_ms ?? 0).toPrecision(2)} ms</summary>
    ${open && html`${peers.length > 0 && html`<${Topology} onDrawn=${fly} />`}<ul class="plain">${notes.map(line => html`<li>${shown(peopled(line), 200)}</li>`)}</ul>`}</details>`;
}

export function SearchView() {
  const { values } = where();
  const asked = values.toString();
  const [state, set] = useState({});
  const [picked, pick] = useState(null);
  const near = placed(values), { q } = near;
  useEffect(() => {
    pick(null);
    if (!asked || near.lost) { set({}); return undefined; }
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
  const list = useMemo(() => (state.answer?.results || []).map((r, n) => ({ ...asOffer(r), number: n + 1 })), [state.answer]);
  const disc = useMemo(() => discOf(q), [asked]);
  const curl = `curl ${quote(`${location.origin}/v1/discovery/query?${q}`)}`;
  const form = of => of.map(([name, label, options]) => html`<${Field} ...${{ name, label, options, values }} />`);
  return html`<${Heading} title="Search">Ask all peers for offers. Every filter is optional, and the question stays in the address bar.<//>
    <form class="filters" onSubmit=${submit} key=${asked}>
      ${form(fields)}
      <datalist id="cities">${cities.map(([name]) => html`<option value=${name}></option>`)}</datalist>
      <div class="actions"><button type="submit" class="primary">Search</button><button type="button" onClick=${() => go('search')}>Clear</button></div>
      <details class="rare" open=${rare.some(([name]) => values.has(name))}><summary>More filters</summary><div class="filters">${form(rare)}</div></details>
    </form>
    <${Meant} ...${near} values=${values} /><${Failed} error=${state.error} />
    ${!asked && html`<${Empty} title="Ask for something" command=${cli('offer find --type compute --near 52.5,13.4 --max-price 2')}>Choose a type and press Search, for example compute near Berlin, at most 2.<//>`}
    ${state.answer && html`<div aria-live="polite" class="titled"><h3>${list.length} of ${state.answer.total ?? list.length} offers</h3><${Whole} of=${state.answer} /></div><${Asked} answer=${state.answer} />
      ${list.length === 0 ? html`<${Nothing} key=${asked} q=${q} notes=${state.answer.notes} />` : html`<div class="results">
      <${Results} key=${asked} offers=${list} picked=${picked} onPick=${pick} />
      <${World} offers=${list} disc=${disc} onPick=${pick} label=${`World map with ${list.length} numbered results; the table beside it lists them`}><${Picked} offers=${picked} onPick=${pick} /><//></div>`}`}
    ${asked && !near.lost && html`<${Elsewhere} commands=${[curl, commandOf(q), goOf(q)]} />`}`;
}
