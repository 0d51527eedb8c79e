// The peer's state as /v1/events tells it, for all views together.

import { call, fronts, html, open, reader, short, useEffect, useState, Text } from './lib.js';

const mostEvents = 500;

export const live = {
  link: 'connecting', // live, lost, refused
  problem: '',
  heard: 0, // time of the last word of the peer; 0 before the first
  loaded: new Set(), // topics whose whole state has come: an empty one is empty
  topics: [],
  offers: new Map(), // by provider and id
  answer: null, // complete, reason and beyond of the offers; null before the peer says it
  services: new Map(), // by service and id
  keysRevision: 0,
  group: null,
  peers: null, // by id; null before the first answer
  health: null,
  status: null,
  contact: null,
  events: [], // newest first
  version: 0,
};

const listeners = new Set();
let due = 0; // timer of the next drawing
let settled = false; // the first state of offers is complete: what follows is news

// Bounds of the rest between drawings, in ms. Drawing a map with many offers takes longer than reading some more of them.
const rest = 100, restWhileLoading = 500;

function changed() {
  live.version++;
  due ||= setTimeout(draw, settled || live.offers.size === 0 ? rest : restWhileLoading);
}

function draw() {
  clearTimeout(due);
  due = 0;
  for (const tell of listeners) tell(live.version);
}

// useLive draws a view again after changes.
export function useLive() {
  const [, set] = useState(0);
  useEffect(() => {
    listeners.add(set);
    return () => listeners.delete(set);
  }, []);
  return live;
}

function note(topic, kind, text, at = new Date()) {
  live.events.unshift({ at, topic, kind, text });
  if (live.events.length > mostEvents) live.events.length = mostEvents;
}

const offerKey = o => `${o.provider_id}/${o.id}`;
const memberKey = i => `${i.service}/${i.id}`;

const apply = {
  open(d) {
    Object.assign(live, { topics: d.topics, link: 'live', problem: '' });
    Object.assign(fronts, d.fronts);
    Object.assign(reader, { role: d.role, name: d.name || '', services: d.services || [], open: Boolean(d.open) });
    look();
  },
  offers(d) {
    if (d.kind === 'reset') { live.offers.clear(); settled = false; live.answer = null; }
    if (d.kind === 'progress') live.answer = d;
    for (const o of d.offers || []) live.offers.set(offerKey(o), o);
    if (d.kind === 'progress' && !settled) {
      settled = true;
      live.loaded.add('offers');
      draw();
    }
    if (!d.offer) return;
    if (d.kind === 'added' || d.kind === 'updated') live.offers.set(offerKey(d.offer), d.offer);
    else live.offers.delete(offerKey(d.offer));
    if (settled) note('offers', d.kind, `${d.offer.name || d.offer.id} (${d.offer.type})${d.reason ? `: ${d.reason}` : ''}`);
  },
  services(d) {
    if (d.kind === 'reset') {
      live.loaded.add('services');
      live.services = new Map((d.instances || []).map(i => [memberKey(i), i]));
    }
    for (const c of d.changes || []) {
      if (c.type === 'DELETED') live.services.delete(memberKey(c.instance));
      else live.services.set(memberKey(c.instance), c.instance);
      note('services', c.type.toLowerCase(), `${memberKey(c.instance)} ${c.instance.health}`);
    }
    if (d.contact) {
      live.contact = d.contact;
      note('services', 'contact', d.contact.stale ? d.contact.reason || 'contact to the group lost' : 'contact to the group');
    }
  },
  history(d) {
    for (const n of d.notes) note('history', n.kind, n.text, new Date(n.at));
  },
  keys(d) {
    live.keysRevision = d.revision;
    for (const c of d.changes || []) note('keys', c.type, c.kv.key);
  },
};

// Group, peers and health have no watch: the page asks for them while it is visible.
const lookEvery = 2000, mostSilence = 10000; // ms

const seen = {
  status(s) { live.status = s; },
  group(g) { live.group = g; },
  peers(d) { live.peers = new Map(d.peers.map(p => [p.id, p])); },
  health(h) { live.health = h; },
};

// look asks once. A group without a majority, and a registry that cannot be used, describe themselves in an error.
async function look() {
  const paths = { status: '/v1/status', peers: '/v1/peers', health: '/v1/health', ...(live.topics.includes('keys') && { group: '/v1/coordination/group' }) };
  await Promise.all(Object.entries(paths).map(async ([name, path]) => {
    const d = await call('GET', path).catch(error => error.body);
    if (d) live.heard = Date.now();
    if (d && (name === 'status' ? d.peer_id : d.peers || d.status || d.phase)) seen[name](d);
  }));
  changed();
}

setInterval(() => {
  if (live.link !== 'live' || document.hidden) return;
  if (Date.now() - live.heard < mostSilence) { look(); return; }
  live.link = 'lost'; // a peer that is cut off ends no stream
  resume();
  changed();
}, lookEvery);

function take(text, state) {
  let name = '', data = '';
  for (const line of text.split('\n')) {
    if (line.startsWith('event: ')) name = line.slice(7);
    else if (line.startsWith('data: ')) data = line.slice(6);
    else if (line.startsWith('id: ')) state.after = line.slice(4);
  }
  if (!data) return;
  const d = JSON.parse(data);
  if (d.kind === 'interrupted') note(name, 'interrupted', d.message);
  else apply[name]?.(d);
  changed();
}

async function read(state, signal) {
  const answer = await open('GET', `/v1/events?since=1h${state.after ? `&after=${encodeURIComponent(state.after)}` : ''}`, undefined, signal);
  if (!state.after) { live.offers.clear(); live.events = []; settled = false; }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    live.heard = Date.now();
    const parts = (rest + value).split('\n\n');
    rest = parts.pop();
    for (const part of parts) take(part, state);
  }
}

let current = null;
let state = { after: '' };

// follow keeps one stream open, from the beginning and as whoever the reader is now, until the next call of follow.
export function follow() {
  state = { after: '' };
  return resume();
}

// A browser opens at most six connections to a peer, and goes on with the requests of pages that the reader has left, for
// the way back. So a page holds a stream only while it is visible; afterwards the stream continues where it ended.
document.addEventListener('visibilitychange', () => {
  if (live.link === 'refused') return;
  live.link = 'connecting';
  if (document.hidden) current?.abort();
  else resume();
  changed();
});

async function resume() {
  current?.abort();
  if (document.hidden) return;
  const mine = current = new AbortController();
  for (let wait = 500; ; wait = Math.min(wait * 2, 5000)) {
    try {
      await read(state, mine.signal);
      wait = 250;
    } catch (error) {
      if (mine.signal.aborted) return;
      if (error.status === 401 || error.status === 403) {
        Object.assign(live, { link: 'refused', problem: error.message });
        changed();
        return;
      }
      if (error.status === 400) state.after = ''; // positions of another peer
      if (error.status) live.problem = error.message;
    }
    if (mine.signal.aborted) return;
    live.link = 'lost';
    changed();
    await new Promise(done => setTimeout(done, wait));
  }
}

// nameOfPeer is what a peer calls itself; empty if this one has not heard it. Names prove nothing: the id stands beside them.
export function nameOfPeer(id) {
  const g = live.group, of = list => list?.find(m => m.peer_id === id)?.name;
  return (id === live.status?.peer_id ? live.status.name : live.peers?.get(id)?.name || of(g?.voters) || of(g?.learners)) || '';
}

// peopled is a text of this peer with the names of peers in place of their ids.
export const peopled = text => String(text ?? '').replace(/12D3KooW\w{44}(?: \([\w.-]+\))?/g, id => nameOfPeer(id.slice(0, 52)) || short(id.slice(0, 52)));

// Peer shows a peer by its name, and by the end of its id.
export function Peer({ id }) {
  const name = nameOfPeer(id);
  return html`${name && html`<${Text} most=${24}>${name}<//> `}<code title=${id}>${short(id)}</code>`;
}

// peerOf is the peer in an owner: itself, or the one that let a caller without a name in, whose user or address follows.
export const peerOf = owner => /^(?:&[\w-]+)?~?(12D3\w+)(?:~.*)?$/.exec(owner)?.[1];

// Owner shows who has a lease: a program by the name that it gives itself, then the caller whom the peer knows, or the peer that let a caller
// without a name in.
export function Owner({ id, application }) {
  const peer = peerOf(id);
  return html`${application && html`<${Text} most=${30}>${application}<//> `}<span class=${application && 'quiet'}>${peer ? html`at <${Peer} id=${peer} />` : html`<${Text} most=${30}>${id.replace(/^@/, '')}<//>`}</span>`;
}
