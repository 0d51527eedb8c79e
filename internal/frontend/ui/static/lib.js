// What all views share: rendering, texts, the API.

import { money, per } from './words.js';

const { preact, preactHooks, htm } = globalThis;

export const { render } = preact;
export const { useState, useEffect, useRef, useMemo } = preactHooks;
export const html = htm.bind(preact.h);

// The token lives in this variable alone: no storage, no address, no log.
let token = '';
export const setToken = text => { token = text.trim(); };
export const signedIn = () => token !== '';

// redeem exchanges the code of a link for the token of a session.
export async function redeem(code) {
  token = '';
  token = (await call('POST', '/v1/page/sessions', { code })).token;
}

// signOut ends the session; a token of the settings has none. The caller loads the page again, which forgets the token.
export const signOut = () => call('DELETE', '/v1/page/sessions').catch(() => {});

// reader is whoever looks at the page, as the peer knows them. The peer decides; the page only hides what it would refuse.
export const reader = { role: 'none', name: '', services: [], open: false };
const roles = ['none', 'read-only', 'service', 'admin'];
export const may = role => roles.indexOf(reader.role) >= roles.indexOf(role);

// mayChange matches the patterns of the role service like package access.
export function mayChange(service, namespace = 'default') {
  if (reader.role !== 'service') return may('admin');
  return (reader.services || []).some(pattern => {
    const name = pattern.includes('/') ? `${namespace}/${service}` : service;
    return pattern.endsWith('*') ? name.startsWith(pattern.slice(0, -1)) : name === pattern;
  });
}

export class ApiError extends Error {
  constructor(status, body) {
    super(body.message || `the peer answered ${status}`);
    this.status = status;
    this.field = body.field;
    this.body = body;
  }
}

// call makes one request of the public API. It returns the JSON of the answer, or its text.
export async function call(method, path, body) {
  const answer = await open(method, path, body);
  const text = await answer.text();
  if (!(answer.headers.get('Content-Type') || '').includes('json')) return text;
  return JSON.parse(text);
}

export async function open(method, path, body, signal, more) {
  const headers = { ...more, ...(token && { Authorization: `Bearer ${token}` }) };
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  const answer = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  if (answer.ok) return answer;
  const text = await answer.text();
  let parsed = {};
  try { parsed = JSON.parse(text); } catch { parsed = { message: text.slice(0, 200) }; }
  throw new ApiError(answer.status, parsed);
}

// asOffer is what lists and maps show of a result.
export const asOffer = r => {
  const m = r.record.metadata || {}, l = r.record.location || {}, p = r.record.pricing || {};
  return {
    key: r.record.key, id: r.record.id, provider_id: r.record.provider_id, type: m.type, subtype: m.subtype, name: m.name,
    latitude: l.latitude, longitude: l.longitude, city: l.city, country: l.country, price: p.base_price, currency: p.currency, price_unit: p.price_unit,
    capabilities: r.record.capabilities, updated_at: r.record.updated_at, expires_at: r.record.expires_at, measured: r.peer, endpoint: r.endpoint, domain: r.domain, doubts: r.doubts, distance_km: r.distance_km, score: r.score ?? 0, parts: r.explain || [],
  };
};

// useCall repeats a GET while the view is open, at intervals and whenever a value of on changes. Without a path it asks nothing. A value
// beside an error is an old one.
export function useCall(path, on = [], every = 0) {
  const [state, set] = useState({ loading: true });
  useEffect(() => {
    if (!path) return undefined;
    let gone = false;
    const ask = () => call('GET', path).then(
      value => gone || set({ value }),
      error => gone || set(old => ({ value: old.value, error })),
    );
    ask();
    const timer = every ? setInterval(ask, every) : 0;
    return () => { gone = true; clearInterval(timer); };
  }, [path, every, ...on]);
  return state;
}

// shown cuts a text of strangers and takes its control characters out. The text stays a text node.
export function shown(text, most = 80) {
  const plain = String(text ?? '').replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, ' ').trim();
  const letters = Array.from(plain);
  return letters.length > most ? letters.slice(0, most - 1).join('') + '…' : plain;
}

// Text shows a text of strangers: cut, without control characters, and isolated in its direction.
export function Text({ children, most }) {
  const text = [children].flat().join('');
  return html`<bdi title=${shown(text, 300)}>${shown(text, most)}</bdi>`;
}

// short is the recognisable end of a peer's id.
export const short = id => (id ? '…' + String(id).slice(-6) : '–');

export const price = o => (o.price === undefined ? '–' : shown(`${money(o.price)} ${shown(o.currency, 8)}${per(o.price_unit)}`, 40));

// Price shows a rounded price; the exact one is in its title.
export const Price = ({ of: o }) => html`<span class="unbroken" title=${o.price === undefined ? undefined : shown(`${o.price} ${o.currency} ${o.price_unit}`, 80)}>${price(o)}</span>`;

export function ago(time) {
  const s = Math.max(0, (Date.now() - new Date(time)) / 1000);
  return span(s * 1000) + ' ago';
}

export function span(ms) {
  const s = Math.round(ms / 1000);
  if (!(s >= 0)) return '–';
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

// textOf decodes base64; undefined if the bytes are no text.
export function textOf(base64) {
  try { return new TextDecoder('utf-8', { fatal: true }).decode(Uint8Array.from(atob(base64), c => c.charCodeAt(0))); } catch { return undefined; }
}

// quote makes one word of a shell.
export const quote = text => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${String(text).replaceAll("'", `'\\''`)}'`);

// fronts are the other addresses of the peer: IP:port, or off; empty before the first contact.
export const fronts = { grpc: '', dns: 'off', zone: '' };
const defaultGRPC = '127.0.0.1:8502'; // of the command line

// reached is an address of the peer for the reader: a listener of all addresses is at the host of the page.
const reached = address => address.replace(/^(0\.0\.0\.0|\[::\])?(?=:\d+$)/, location.hostname === 'localhost' ? '127.0.0.1' : location.hostname);
const grpcFlag = () => (!fronts.grpc || reached(fronts.grpc) === defaultGRPC ? '' : ` --grpc ${reached(fronts.grpc)}`);

// cli is a command line that asks this peer; empty if the peer answers none. A test knows every call of it.
export function cli(line) {
  if (fronts.grpc === 'off') return '';
  const [own, ...run] = line.split(' -- ');
  return [`blackholed ${own}${grpcFlag()}`, ...run].join(' -- ');
}

export const nameOf = service => `${service}.service.${fronts.zone}`;

// dnsLines asks the name server for a service; none if the peer has no name server.
export function dnsLines(service) {
  if (fronts.dns === 'off' || !fronts.zone) return [];
  const [, host, port] = /^(.*):(\d+)$/.exec(reached(fronts.dns)), name = quote(nameOf(service));
  return [`dig @${host.replace(/[[\]]/g, '')} -p ${port} ${name} SRV`];
}

// Command shows a command with a button that copies it.
export function Command({ children }) {
  const [done, set] = useState(false);
  const text = [children].flat().join('');
  if (!text) return null;
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    set(true);
    setTimeout(() => set(false), 1500);
  };
  return html`<div class="command"><code>${text}</code><button type="button" onClick=${copy} aria-label=${`Copy: ${text}`}>${done ? 'copied' : 'copy'}</button></div>`;
}

// Heading is the title of a view, with a sentence for somebody who sees it for the first time.
export const Heading = ({ title, children }) => html`<h2>${title}</h2><p class="lead">${children}</p>`;

// Elsewhere lists the commands that do the same as a view.
export const Elsewhere = ({ commands }) => html`<h3>The same elsewhere</h3>${commands.filter(Boolean).map(text => html`<${Command} key=${text}>${text}<//>`)}`;

// Empty says what to do in a view without content, and the command that does the same. A reader without the role that
// it needs learns that instead. Before the first contact nothing is known, not even that the view is empty.
export const Empty = ({ title, children, command, needs = 'read-only' }) => reader.role === 'none' ? html`<p class="quiet">Waiting for the peer…</p>` : html`<div class="empty"><h3>${title}</h3>
  ${may(needs) ? html`<p>${children}</p>${command && html`<${Command}>${command}<//>`}` : html`<p>Others fill this view: you have the role ${reader.role}, and it needs ${needs}.</p>`}</div>`;

// NotLoaded stands in the place of a list that the peer has not told yet. Such a list is not empty.
export const NotLoaded = ({ error }) => html`<p class="empty" role="status">${!error ? 'Not loaded yet: waiting for the peer.' : error instanceof TypeError ? 'Not loaded: no contact with this peer since the page asked.' : 'Not loaded.'}</p>`;

// Failed shows why the peer refused. That it did not answer at all, and that its group has no majority, says the banner over the page.
export function Failed({ error }) {
  if (!error || error instanceof TypeError) return null;
  if (error.body?.error === 'no_quorum') return html`<p class="quiet" role="status">The group does not answer, as the top of the page says. A list below is as it was before.</p>`;
  return html`<p class="failed" role="alert">${shown(error.message, 300)}</p>`;
}

// Table shows rows of cells below a header. A narrow screen leaves cells of the class extra out; their heading is in a list.
export const Table = ({ label, head, rows }) => html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table>
  <thead><tr>${head.filter(Boolean).map(h => html`<th scope="col" class=${Array.isArray(h) && 'extra'}>${h}</th>`)}</tr></thead>
  <tbody>${rows}</tbody></table></div>`;

const tones = { good: 'good', bad: 'bad', off: 'off', UP: 'good', healthy: 'good', ready: 'good', STARTING: 'wait', UNKNOWN: 'wait', degraded: 'wait', UNHEALTHY: 'bad', DOWN: 'bad', unhealthy: 'bad', OUT_OF_SERVICE: 'off' };
export const Badge = ({ children, tone = children }) => html`<span class=${`badge ${tones[tone] || 'wait'}`}>${shown([children].flat().join(''), 20)}</span>`;

// Whole says whether an answer has every offer, and otherwise what may be missing. Offers beyond need a newer peer.
export const Whole = ({ of: a }) => a && html`<p class="quiet whole" role="status"><span class=${`badge ${a.complete ? 'good' : 'wait'}`}>${a.complete ? 'complete' : 'incomplete'}</span> ${shown(a.reason || a.incomplete_reason, 300)}
  ${a.beyond?.records > 0 && ` ${a.beyond.records} more need a newer version of blackholed.`}</p>`;

// question and where read and write the address bar: #/view?key=value.
export function where() {
  const [view, question = ''] = location.hash.replace(/^#\/?/, '').split('?');
  return { view, values: new URLSearchParams(question) };
}

export function go(view, values) {
  const question = values && values.toString();
  history.replaceState(null, '', `#/${view}${question ? `?${question}` : ''}`);
  dispatchEvent(new HashChangeEvent('hashchange'));
}

// mark is what a row has that the address bar names: it shows itself once.
const reveal = row => row?.scrollIntoView({ block: 'center' });
export const mark = (name, value) => (where().values.get(name) === String(value) ? { class: 'chosen', ref: reveal } : {});

const inks = ['#3b63c9', '#c2571a', '#1f8a5b', '#8a4fb5', '#b3285b', '#6b7280'];
const known = ['compute', 'storage', 'bandwidth', 'cdn'];
export const colour = type => inks[known.indexOf(type)] || inks[5];
export const types = known;
