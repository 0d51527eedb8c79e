// The peer's state, for all views together: its history, and the watches of offers and services.

import { asOffer, call, fronts, html, open, reader, short, useEffect, useState, Text } from './lib.js';

const mostEvents = 500;

export const live = {
  link: 'connecting', // live, lost, refused
  problem: '',
  heard: 0, // time of the last word of the peer; 0 before the first
  loaded: new Set(), // watches whose whole state has come: an empty one is empty
  planes: [],
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
  notes: [], // of the history alone, oldest first
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

// tap calls f with what passes between peers: { way, kind, text }, way the ids of the peers in turn. It returns how to end that.
const taps = new Set();
export function tap(f) {
  taps.add(f);
  return () => taps.delete(f);
}
tap.send = (kind, way, text) => { for (const f of taps) f({ kind, way: way.filter(Boolean), text }); };

function note(topic, kind, text, at = new Date()) {
  live.events.unshift({ at, topic, kind, text });
  if (live.events.length > mostEvents) live.events.length = mostEvents;
}

const offerKey = o => `${o.provider_id}/${o.id}`;
const memberKey = i => `${i.service}/${i.id}`;

// apply has what to do with an event, by stream.
const apply = {
  history(name, d) {
    for (const n of name === 'history' ? d.notes : []) {
      note('history', n.kind, n.text, new Date(n.at));
      live.notes.push({ ...n, at: new Date(n.at) });
      if (live.notes.length > mostEvents) live.notes.shift();
    }
    if (name !== 'open') return;
    Object.assign(live, { planes: d.planes, link: 'live', problem: '' });
    Object.assign(fronts, d.fronts);
    Object.assign(reader, { role: d.role, name: d.name || '', services: d.services || [], open: Boolean(d.open) });
  },
  offers(kind, d) {
    if (kind === 'reset') { live.offers.clear(); settled = false; live.answer = null; }
    if (kind === 'progress') live.answer = d;
    if (kind === 'progress' && !settled) {
      settled = true;
      live.loaded.add('offers');
      draw();
    }
    if (!d.record) return;
    const o = asOffer(d);
    if (kind === 'added' || kind === 'updated') live.offers.set(offerKey(o), o);
    else live.offers.delete(offerKey(o));
    if (!settled) return;
    note('offers', kind, `${o.name || o.id} (${o.type})${d.reason ? `: ${d.reason}` : ''}`);
    tap.send('offer', [o.provider_id, live.status?.peer_id], `offer ${o.name || o.id} ${kind}`);
  },
  services(kind, d) {
    if (kind === 'reset') {
      live.loaded.add('services');
      live.services = new Map(d.instances.map(i => [memberKey(i), i]));
    }
    if (kind === 'change') {
      for (const c of d.events) {
        if (c.type === 'DELETED') live.services.delete(memberKey(c.instance));
        else live.services.set(memberKey(c.instance), c.instance);
        note('services', c.type.toLowerCase(), `${memberKey(c.instance)} ${c.instance.health}`);
        tap.send('service', [c.instance.peer, live.group?.leader, live.status?.peer_id], `${memberKey(c.instance)} ${c.type === 'DELETED' ? 'ended' : c.instance.health}`);
      }
    }
    if (kind === 'contact') {
      live.contact = { ...d, at: Date.now() };
      note('services', 'contact', d.stale ? d.reason || 'contact to the group lost' : 'contact to the group');
    }
  },
};

// Group, peers and health are asked for while the page is visible. The revision of the group tells that keys changed.
const lookEvery = 2000, mostSilence = 10000; // ms

const seen = {
  status(s) { live.status = s; },
  group(g) {
    if (live.keysRevision && +g.revision > +live.keysRevision) tap.send('key', [g.leader, live.status?.peer_id], `revision ${g.revision}`);
    Object.assign(live, { group: g, keysRevision: g.revision });
  },
  peers(d) { live.peers = new Map(d.peers.map(p => [p.id, p])); },
  health(h) { live.health = h; },
};

// look asks once. A group without a majority, and a registry that cannot be used, describe themselves in an error.
async function look() {
  const paths = { status: '/v1/status', peers: '/v1/peers', health: '/v1/health', ...(live.planes.includes('coordination') && { group: '/v1/coordination/group' }) };
  await Promise.all(Object.entries(paths).map(async ([name, path]) => {
    const d = await call('GET', path).catch(error => error.body);
    if (d) live.heard = Date.now();
    if (d && (name === 'status' ? d.peer_id : d.peers || d.status || d.phase)) seen[name](d);
  }));
  changed();
}

const paths = {
  history: '/v1/events?since=1h',
  offers: '/v1/discovery/watch?types=compute,storage,bandwidth,cdn',
  services: '/v1/services/*/watch?health=any',
};

let after = {}; // id of the last event of each stream

function take(stream, text) {
  let name = '', data = '';
  for (const line of text.split('\n')) {
    if (line.startsWith('event: ')) name = line.slice(7);
    else if (line.startsWith('data: ')) data = line.slice(6);
    else if (line.startsWith('id: ')) after[stream] = line.slice(4);
  }
  if (!data) return;
  apply[stream](name, JSON.parse(data));
  changed();
  return name;
}

// read takes the events of a stream until its end, or the event last.
async function read(stream, signal, opened, last) {
  const answer = await open('GET', paths[stream], undefined, signal, { Accept: 'text/event-stream', ...(after[stream] && { 'Last-Event-ID': after[stream] }) });
  if (!after[stream] && stream === 'history') Object.assign(live, { events: [], notes: [] });
  if (!after[stream] && stream === 'offers') { live.offers.clear(); settled = false; }
  opened();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    live.heard = Date.now();
    const parts = (rest + value).split('\n\n');
    rest = parts.pop();
    for (const part of parts) if (take(stream, part) === last && last) return reader.cancel();
  }
}

let current = null;

// follow keeps the streams open, from the beginning and as whoever the reader is now, until the next call of follow.
export function follow() {
  after = {};
  return resume();
}

// A browser opens at most six connections to a peer, and goes on with the requests of pages that the reader has left, for
// the way back. So a page holds streams only while it is visible; afterwards they continue where they ended.
document.addEventListener('visibilitychange', () => {
  if (live.link === 'refused') return;
  live.link = 'connecting';
  if (document.hidden) current?.abort();
  else resume();
  changed();
});

function resume() {
  current?.abort();
  if (document.hidden) return;
  current = new AbortController();
  for (const stream of ['offers', 'services']) keep(stream, current.signal);
  ask(current);
}

// ask asks again and again for what is not watched, the history among it: two streams leave connections to other windows. A peer that is
// cut off ends no stream, so a failure begins all anew.
async function ask(mine) {
  while (!mine.signal.aborted) {
    try {
      await read('history', AbortSignal.any([mine.signal, AbortSignal.timeout(mostSilence)]), () => {}, 'history');
    } catch (error) {
      if (mine.signal.aborted) return;
      if (error.status === 400) after.history = ''; // a position of another peer
      if (error.status) live.problem = error.message;
      live.link = error.status === 401 || error.status === 403 ? 'refused' : 'lost';
      mine.abort();
      changed();
      if (live.link === 'lost') setTimeout(() => mine === current && resume(), 500);
      return;
    }
    await Promise.race([look(), new Promise(done => setTimeout(done, mostSilence))]);
    await new Promise(done => setTimeout(done, lookEvery));
  }
}

// keep reads a stream until the signal. It notes each outage once.
async function keep(stream, signal) {
  let down = false;
  for (let wait = 500; ; wait = Math.min(wait * 2, 5000)) {
    try {
      await read(stream, signal, () => { down = false; wait = 250; });
    } catch (error) {
      if (signal.aborted || error.status === 404) return; // this peer has no such plane
      if (error.status === 400) after[stream] = ''; // a position of another peer
      if (error.status && !down) note(stream, 'interrupted', error.message);
      down = true;
    }
    if (signal.aborted) return;
    changed();
    await new Promise(done => setTimeout(done, wait));
  }
}

// relayed says that no connection with a peer is direct.
export const relayed = p => (p.addrs || []).length > 0 && p.addrs.every(a => a.includes('/p2p-circuit'));

// staleFor is the age of what this page shows of the group, in ms; 0 while it is new.
export const staleFor = () => (live.contact?.stale ? 1000 * (live.contact.age_seconds || 0) + Date.now() - live.contact.at : 0);

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
