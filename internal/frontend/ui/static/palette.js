// The palette: any view, peer, service, instance, lock, key, offer, grant and city by a part of its name or id.

import { call, html, may, shown, short, textOf, useEffect, useMemo, useRef, useState, Text } from './lib.js';
import { live, nameOfPeer } from './live.js';
import { cities } from './cities.js';
import { edits, plain, typos } from './words.js';

const most = 40; // rows
const link = (view, name, value) => `#/${view}?${new URLSearchParams({ [name]: value })}`;
const idOf = key => key.slice(key.lastIndexOf('/') + 1);

// entry is one thing to find: words are what it is found by.
const entry = (kind, name, href, note = '', words = '') => ({ kind, name, href, note, text: plain(`${kind} ${name} ${note} ${words}`), own: plain(name) });

const places = () => cities.map(([name]) => ({ ...entry('city', name, `#/search?${new URLSearchParams({ type: 'compute', near: name })}`), note: 'search near it' }));

// here lists what the page knows already.
function* here(views) {
  for (const [view, [title]] of Object.entries(views)) yield entry('view', title, `#/${view}`);
  const s = live.status, g = live.group || {}, peers = new Set([s?.peer_id, ...(live.peers?.keys() ?? []), ...[...(g.voters || []), ...(g.learners || [])].map(m => m.peer_id)].filter(Boolean));
  for (const id of peers) yield entry('peer', nameOfPeer(id) || short(id), link('peers', 'peer', id), id === s?.peer_id ? 'this peer' : id === g.leader ? 'leader' : '', id);
  for (const name of new Set([...live.services.values()].map(i => i.service))) yield entry('service', name, link('services', 'service', name));
  for (const i of live.services.values()) yield entry('instance', i.id, `#/services?${new URLSearchParams({ service: i.service, instance: i.id })}`, `${i.service} ${i.health}`);
  for (const o of live.offers.values()) yield entry('offer', o.name || o.id, link('map', 'offer', o.key), [o.type, o.city].filter(Boolean).join(', '), `${o.id} ${o.key} ${nameOfPeer(o.provider_id)}`);
}

// named reads locks and keys of the group whose names begin so, as many as an answer has.
async function named(prefix) {
  if (!live.planes.includes('coordination')) return [];
  const q = encodeURIComponent(prefix), read = path => call('GET', path).catch(() => ({})); // a part that the peer refuses is left out
  const [locks, keys] = await Promise.all([read(`/v1/coordination/locks?limit=500&prefix=${q}`), read(`/v1/coordination/keys?prefix=true&limit=500&keys_only=true&key=${q}`)]);
  return [
    ...(locks.locks || []).map(l => entry('lock', l.name, link('locks', 'lock', l.name), l.holding[0] ? `token ${l.holding[0].fencing_token}` : '', l.holding.map(c => `${c.key} ${c.application || ''} ${c.holder_id}`).join(' '))),
    ...(keys.kvs || []).map(kv => textOf(kv.key)).filter(name => name && !/^(directory|requirements-status)\//.test(name)).map(name => entry('key', name, link('keys', 'key', name))),
  ];
}

// asked reads what the peer knows and the page does not keep.
async function asked() {
  const read = (path, on) => (on ? call('GET', path).catch(() => ({})) : {}), group = live.planes.includes('coordination');
  const [locksAndKeys, requirements, leases, grants] = await Promise.all([named(''), read('/v1/coordination/requirements', group), read('/v1/coordination/leases?limit=500', group), read('/v1/trade/grants', may('service'))]);
  const sides = [['held', grants.held || []], ['given', grants.given || []]];
  return [
    ...locksAndKeys,
    ...(requirements.requirements || []).map(r => entry('requirement', r.name, link('requirements', 'requirement', r.name), r.service)),
    ...(leases.leases || []).map(l => entry('lease', l.id === '0' ? l.tag : l.id, link('locks', 'lease', l.tag), l.application || '', `${l.client_id} ${l.tag}`)),
    ...sides.flatMap(([side, list]) => list.map(g => entry('grant', idOf(g.key), link('grants', 'grant', g.token), side, `${g.token} ${g.key} ${g.provider_id} ${g.consumer_id}`))),
  ];
}

// fit says how well a word fits an entry: the smaller, the better. Infinity does not.
function fit(e, word) {
  if (e.own === word) return 0;
  if (e.own.startsWith(word)) return 1;
  const at = e.text.indexOf(word);
  return at < 0 ? Infinity : at > 0 && /[\p{L}\p{N}]/u.test(e.text[at - 1]) ? 3 : 2;
}

// mended is fit for a word with errors. Nobody types a whole id, so long words are left out.
function mended(e, word) {
  const direct = fit(e, word), least = typos(word);
  if (direct < Infinity || !least) return direct;
  e.parts ??= [...new Set([e.own, ...e.text.split(/[^\p{L}\p{N}]+/u)])].filter(p => p.length < 40);
  const best = e.parts.reduce((best, p) => Math.min(best, edits(p, word, least)), Infinity);
  return best > least ? Infinity : 4 * best - (e.parts[0] === e.own && edits(e.own, word, least) === best ? 1 : 0);
}

// find returns the entries that fit every word of a question, the best first. Errors are mended only if nothing fits as it is.
export function find(entries, question) {
  const words = plain(question).split(/\s+/).filter(Boolean), whole = words.join(' ');
  if (!words.length) return entries.filter(e => e.kind === 'view');
  for (const how of [fit, mended]) {
    const found = [];
    for (const e of entries) {
      let sum = e.own === whole ? -2 : e.own.startsWith(whole) ? -1 : 0;
      for (const w of words) if ((sum += how(e, w)) === Infinity) break;
      if (sum < Infinity) found.push([sum, e]);
    }
    if (found.length) return found.sort((a, b) => a[0] - b[0]).map(([, e]) => e);
  }
  return [];
}

// beyond asks for what begins so and is in no list: a lock or key of a large group, an offer of the network by its whole key.
async function beyond(question) {
  if (question.length < 2) return [];
  if (!question.startsWith('/blackhole/services/')) return named(question);
  const r = await call('GET', `/v1/discovery/resolve?key=${encodeURIComponent(question)}`).catch(() => null);
  return r ? [entry('offer', r.metadata?.name || r.id, link('map', 'offer', question), 'asked the network', question)] : [];
}

// Palette is the dialogue. A dialogue of the browser keeps the focus inside and gives it back at its end.
export function Palette({ views, onClose }) {
  const box = useRef(null);
  const [more, set] = useState([]);
  const [question, ask] = useState('');
  const [at, move] = useState(0);
  const [late, found] = useState([]);
  useEffect(() => {
    const own = box.current;
    own.showModal();
    let gone = false;
    asked().then(list => gone || set(list));
    return () => { gone = true; own.close(); };
  }, []);
  useEffect(() => {
    let gone = false;
    const timer = setTimeout(() => beyond(question.trim()).then(list => gone || found(list)), 200);
    return () => { gone = true; clearTimeout(timer); };
  }, [question]);
  const known = useMemo(() => [...here(views)], []), towns = useMemo(places, []);
  const all = useMemo(() => {
    const hrefs = new Set(more.map(e => e.href));
    return find([...known, ...more, ...late.filter(e => !hrefs.has(e.href)), ...towns], question);
  }, [more, late, question]);
  const list = all.slice(0, most), now = Math.min(at, list.length - 1);
  useEffect(() => { document.getElementById(`found-${now}`)?.scrollIntoView({ block: 'nearest' }); }, [now]);
  const open = e => {
    if (!e) return;
    onClose();
    location.hash = e.href;
    requestAnimationFrame(() => document.getElementById('content')?.focus()); // where the choice is, not the way to it
  };
  const key = e => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 }[e.key];
    if (step) move(Math.max(0, Math.min(list.length - 1, now + step)));
    else if (e.key === 'Enter') open(list[now]);
    else return;
    e.preventDefault();
  };
  return html`<dialog class="palette" ref=${box} aria-label="Find anything" onClose=${onClose} onClick=${e => e.target === box.current && onClose()}>
    <input name="find" type="text" role="combobox" aria-label="Find a view, peer, service, lock, key, offer, grant, city or id" aria-expanded=${list.length > 0} aria-controls=${list.length ? 'found' : undefined} aria-autocomplete="list" aria-activedescendant=${list.length ? `found-${now}` : undefined}
      placeholder="A name, an id, a city …" autocomplete="off" spellcheck="false" value=${question} onInput=${e => { ask(e.target.value); move(0); }} onKeyDown=${key} />
    ${list.length > 0 && html`<ul id="found" role="listbox" aria-label="Found">${list.map((e, n) => html`<li key=${`${e.kind} ${e.href} ${e.name}`} id=${`found-${n}`} role="option" aria-selected=${n === now} onClick=${() => open(e)} onPointerMove=${() => n !== now && move(n)}>
      <span class="kind">${e.kind}</span><${Text} most=${60}>${e.name}<//><span class="quiet">${shown(e.note, 50)}</span></li>`)}</ul>`}
    <p class="quiet" role="status">${list.length === 0 ? 'Nothing has such a name or id here. Another peer may know it.' : all.length > most ? `The best ${most} of ${all.length}.` : ''} <kbd>↑</kbd> <kbd>↓</kbd> choose, <kbd>Enter</kbd> opens, <kbd>Esc</kbd> closes</p>
  </dialog>`;
}
