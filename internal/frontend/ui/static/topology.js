// The topology: this peer, the peers that it knows, and what passes between them as it happens.

import { go, html, may, shown, short, span, useCall, useEffect, useMemo, useRef, useState, Text } from './lib.js';
import { live, nameOfPeer, peerOf, relayed, tap, useLive } from './live.js';
import { counted, decimal } from './words.js';

// Bounds of the drawing. More peers, locks and grants are counted below it.
const mostPeers = 48, mostNamed = 24, mostLocks = 10, mostGrants = 8, mostSparks = 24;
const oneRing = 10; // so many peers stand on one ring; of more, the voters stand on an inner one

const calm = matchMedia('(prefers-reduced-motion: reduce)'), narrow = matchMedia('(max-width: 700px)');

function useMedia(query) {
  const [, turn] = useState(0);
  useEffect(() => {
    const changed = () => turn(n => n + 1);
    query.addEventListener('change', changed);
    return () => query.removeEventListener('change', changed);
  }, []);
  return query.matches;
}

// useNarrow says whether the screen is narrow, and draws again when that changes.
export const useNarrow = () => useMedia(narrow);

// useLocks reads the locks while the view is open; undefined before the first answer. So do the grants.
export const useLocks = () => useCall(live.planes.includes('coordination') ? '/v1/coordination/locks?limit=500' : '', [live.keysRevision], 5000).value?.locks;
const useGrants = () => useCall(may('service') ? '/v1/trade/grants' : '', [], 2000).value;

// known lists the other peers with what they are to this one: voters first, the rest by id.
export function known({ group: g, peers, status }) {
  const voters = new Map((g?.voters || []).map(m => [m.peer_id, m])), learners = new Map((g?.learners || []).map(m => [m.peer_id, m]));
  const blind = Boolean(g?.missing); // nobody tells this peer which voters are active
  const ids = [...new Set([...voters.keys(), ...[...learners.keys()].sort(), ...[...(peers?.keys() ?? [])].sort()])].filter(id => id !== status?.peer_id);
  return ids.map(id => {
    const m = voters.get(id) || learners.get(id), connected = peers?.has(id), silent = m && !m.active;
    return {
      id, name: nameOfPeer(id) || short(id), leads: id === g?.leader, role: voters.has(id) ? 'voter' : learners.has(id) ? 'learner' : 'peer',
      connected, relayed: connected && relayed(peers.get(id)), silent: +m?.silent_ms || 0,
      state: connected && (!silent || blind) ? 'here' : silent && voters.has(id) ? 'silent' : connected || m?.active ? 'here' : 'away',
    };
  });
}

// place puts peers around the middle of a field.
function place(list, width, height) {
  const all = list.slice(0, mostPeers), inner = all.length > oneRing ? all.filter(p => p.role === 'voter') : [];
  const spots = new Map();
  for (const [ring, rx, ry] of [[inner, 0.24, 0.26], [all.filter(p => !inner.includes(p)), inner.length ? 0.44 : 0.36, inner.length ? 0.41 : 0.36]]) {
    ring.forEach((p, n) => {
      const turn = 2 * Math.PI * (n + 0.5) / ring.length - (ring.length === 1 ? Math.PI : Math.PI / 2);
      spots.set(p.id, [width / 2 + rx * width * Math.cos(turn), height / 2 + ry * height * Math.sin(turn)]);
    });
  }
  return spots;
}

// holderOf is the peer where the holder of a lock called; undefined for a program with a name of its own.
const holderOf = lock => lock.holding[0] && peerOf(lock.holding[0].holder_id);

// fly draws a spark between two points, or lights the end up for a reader who wants no movement.
function fly(layer, from, to, kind, onEnd) {
  const dot = document.createElementNS(layer.namespaceURI, 'circle');
  dot.setAttribute('class', `spark ${kind}`);
  dot.setAttribute('r', calm.matches ? 9 : 4.5);
  layer.append(dot);
  const at = ([x, y]) => `translate(${x}px, ${y}px)`;
  const steps = calm.matches ? [{ transform: at(to), opacity: 0.8 }, { transform: at(to), opacity: 0 }] : [{ transform: at(from) }, { transform: at(to) }];
  dot.animate(steps, { duration: 900, easing: 'ease-in-out' }).onfinish = () => { dot.remove(); onEnd?.(); };
}

// useSparks lets what happens fly through the layer. Each event is one way of peers: from, over, to.
function useSparks(layer, spots, say) {
  const latest = useRef(spots);
  latest.current = spots;
  useEffect(() => tap(({ way, kind, text }) => {
    const points = way.map(id => latest.current.get(id)).filter(Boolean).filter((p, n, all) => p !== all[n - 1]);
    say({ text, way });
    if (points.length < 2 || !layer.current || document.hidden || layer.current.childElementCount >= mostSparks) return;
    const step = n => n < points.length && layer.current && fly(layer.current, points[n - 1], points[n], kind, () => step(n + 1));
    step(1);
  }), []);
}

// useMoves tells the sparks of locks that changed hands since the last answer.
function useMoves(locks) {
  const before = useRef(null);
  useEffect(() => {
    if (!locks) return;
    const now = new Map(locks.map(l => [l.name, [l.holding[0]?.fencing_token, holderOf(l)]]));
    if (before.current) for (const [name, [token, holder]] of now) if (holder && token !== before.current.get(name)?.[0]) tap.send('lock', [live.group?.leader, holder], `lock ${name} to ${nameOfPeer(holder) || short(holder)}, token ${token}`);
    before.current = now;
  }, [locks]);
}

// rates are the bytes a second of each grant since the answer before.
function useRates(list, value) {
  const before = useRef({ at: 0, bytes: new Map(), rates: new Map() });
  return useMemo(() => {
    const at = Date.now(), bytes = new Map(list.map(g => [g.id, +g.sent_bytes + +g.received_bytes])), old = before.current;
    const rates = new Map([...bytes].map(([id, n]) => [id, old.bytes.has(id) ? Math.max(0, n - old.bytes.get(id)) / ((at - old.at) / 1000) : 0]));
    before.current = { at, bytes, rates };
    return rates;
  }, [value]);
}

const Node = ({ at: [x, y], peer: p, named, mine, onPoint }) => html`<g class=${`node ${p.role} ${p.state}`} style=${{ transform: `translate(${x}px, ${y}px)` }} onPointerEnter=${() => onPoint(p)} onPointerLeave=${() => onPoint(null)} onClick=${() => go('peers', new URLSearchParams({ peer: p.id }))}>
  ${p.leads && html`<circle r=${mine ? 25 : 15} class="leads" />`}${mine ? html`<circle r="18" class="hole" /><circle r="18" class="light" />` : html`<circle r=${p.role === 'voter' ? 10 : p.role === 'learner' ? 7 : 5.5} class="disc" />`}
  ${named && html`<text y=${mine ? 40 : 28} class="name">${shown(p.name, 16)}</text>`}
  ${(mine || (named && (p.leads || p.state === 'silent'))) && html`<text y=${mine ? 54 : 41} class="sub-name">${[mine && 'this peer', p.leads ? 'leads' : mine && p.voter && 'voter', p.state === 'silent' && (p.silent ? `silent for ${span(p.silent)}` : 'silent')].filter(Boolean).join(', ')}</text>`}
  ${!mine && html`<circle r="16" class="hand" />`}</g>`;

// shares counts what each peer sells and serves, as far as this one knows.
export function shares() {
  const all = new Map(), of = id => all.get(id) || all.set(id, { offers: 0, instances: 0, services: new Set() }).get(id);
  for (const o of live.offers.values()) of(o.provider_id).offers++;
  for (const i of live.services.values()) {
    of(i.peer).instances++;
    of(i.peer).services.add(i.service);
  }
  return all;
}

// Card tells what is known of the peer under the pointer. The table of peers tells the same.
function Card({ peer: p, at: [x, y], width, height, locks }) {
  const share = shares().get(p.id), held = (locks || []).filter(l => holderOf(l) === p.id).map(l => tail(l.name)), trip = live.peers.get(p.id)?.latency_ms;
  const what = [p.role !== 'self' && p.role, p.leads && 'leads', p.state === 'silent' ? 'silent' : p.state === 'away' && 'not connected with this peer', p.relayed && 'relayed', trip && `round trip ${trip.toPrecision(2)} ms`];
  const has = [share?.offers && counted(share.offers, 'offer'), share?.instances && `${counted(share.instances, 'instance')} of ${counted(share.services.size, 'service')}`, held.length && `holds ${held.slice(0, 3).join(', ')}${held.length > 3 ? ' …' : ''}`];
  return html`<div class=${`tip ${y < height / 2 ? 'below' : ''}`} style=${{ left: `${Math.min(85, Math.max(15, 100 * x / width))}%`, top: `${100 * y / height}%` }}><b>${shown(p.name, 40)}</b>${[what, has].map(list => list.some(Boolean) && html`<span>${shown(list.filter(Boolean).join(', '), 120)}</span>`)}</div>`;
}

const tail = text => shown(text.slice(text.lastIndexOf('/') + 1) || text, 18);

// docked puts marks beside the peers that hold them, one above the other; those of nobody here stand in the corner.
function docked(list, spots, peerOf, corner) {
  const taken = new Map();
  return list.map(one => {
    const id = peerOf(one), at = spots.get(id) || corner, n = taken.get(at) || 0;
    taken.set(at, n + 1);
    return [one, at === corner ? [corner[0], corner[1] - 16 * n] : [at[0] + 17, at[1] - 13 - 15 * n]];
  });
}

// Topology draws what the peer has told. Before, there is nothing to draw. onDrawn is called when what flies can be seen.
export function Topology({ onDrawn }) {
  const { status, peers } = useLive();
  return status && peers && html`<${Drawing} onDrawn=${onDrawn} />`;
}

function Drawing({ onDrawn }) {
  const { status, group: g, version } = useLive();
  const small = useNarrow(), layer = useRef(null);
  
  const [last, say] = useState(null), [pointed, point] = useState(null);
  const locks = useLocks(), grants = useGrants();
  const list = useMemo(() => known(live), [version]), drawn = list.slice(0, mostPeers);
  const [width, height] = [small ? 380 : 1080, list.length === 0 ? 130 : small ? 400 : 370];
  const shape = `${width} ${height} ${status?.peer_id} ${drawn.map(p => p.id + p.role).join()}`;
  const spots = useMemo(() => place(list, width, height).set(status?.peer_id, [width / 2, height / 2]), [shape]);
  const active = [...(grants?.held || []).map(x => ({ ...x, id: `h${x.provider_id}${x.token}`, with: x.provider_id, side: 'held' })), ...(grants?.given || []).map(x => ({ ...x, id: `g${x.token}`, with: x.consumer_id, side: 'given' }))].filter(x => x.state === 'STATE_ACTIVE' && spots.has(x.with));
  const rates = useRates(active, grants);
  useSparks(layer, spots, say);
  useEffect(() => onDrawn?.(), [onDrawn]);
  useMoves(locks);
  const me = spots.get(status?.peer_id), mine = { id: status?.peer_id, name: status?.name || short(status?.peer_id), leads: g?.leader === status?.peer_id, role: 'self', state: 'here', voter: (g?.voters || []).some(m => m.peer_id === status?.peer_id) };
  const lead = spots.get(g?.leader), members = new Set((g?.voters || []).map(m => m.peer_id)), shownLocks = [...(locks || [])].sort((a, b) => (a.name < b.name ? -1 : 1)).slice(0, mostLocks);
  const corner = [16, height - 14], beyond = list.length - drawn.length, silent = list.filter(p => p.state === 'silent');
  const names = list.filter(p => p.leads).map(p => p.name);
  const label = `${mine.name} and ${counted(list.length, 'other peer')}: ${counted(members.size, 'voter')}, ${mine.leads ? 'led by this peer' : names.length ? `led by ${shown(names[0], 24)}` : 'no leader'}${silent.length ? `, silent: ${shown(silent.map(p => p.name).join(', '), 80)}` : ''}; ${counted(locks?.length ?? 0, 'lock')} held, ${counted(active.length, 'grant')} active`;
  return html`<section class="topology" aria-label="Topology"><div class="field"><svg viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${label}>
      ${drawn.map(p => { const [x, y] = spots.get(p.id); return p.connected && html`<line key=${p.id} class=${`tie ${p.relayed ? 'relayed' : ''}`} x1=${me[0]} y1=${me[1]} x2=${x} y2=${y} />`; })}
      ${lead && [...members].filter(id => id !== g.leader && spots.has(id) && (id === status.peer_id || list.find(p => p.id === id)?.state === 'here')).map(id => { const [x, y] = spots.get(id); return html`<line key=${`r${id}`} class="raft" x1=${lead[0]} y1=${lead[1]} x2=${x} y2=${y} />`; })}
      ${active.slice(0, mostGrants).map((x, n) => {
        const [a, b] = spots.get(x.with), rate = rates.get(x.id) || 0, [c, d] = [(a + me[0]) / 2, (b + me[1]) / 2 - 34 - 16 * n];
        const at = (p, q, r) => 0.16 * p + 0.48 * q + 0.36 * r; // of the curve, nearer to this peer: below the other stands its name
        return html`<g key=${x.id} class=${`grant ${rate ? 'flows' : ''}`}><path d=${`M${a} ${b}Q${c} ${d} ${me[0]} ${me[1]}`} /><text x=${at(a, c, me[0])} y=${at(b, d, me[1])}>${tail(x.key)}${rate ? ` ${decimal(rate, 'B')}/s` : ''}</text></g>`;
      })}
      <g ref=${layer}></g>
      ${drawn.map(p => html`<${Node} key=${p.id} at=${spots.get(p.id)} peer=${p} onPoint=${point} named=${drawn.length <= (small ? 8 : mostNamed) || p.role === 'voter' || p.state === 'silent'} />`)}
      <${Node} at=${me} peer=${mine} onPoint=${point} named=${true} mine=${true} />
      ${docked(shownLocks, spots, holderOf, corner).map(([l, [x, y]]) => html`<g key=${`l${l.name}`} class=${`lock ${g?.missing ? 'old' : ''}`} style=${{ transform: `translate(${x}px, ${y}px)` }}><path d="M0 -5L5 0L0 5L-5 0Z" /><text x=${x > width - 90 ? -9 : 9} y="4" class=${x > width - 90 && 'before'}>${tail(l.name)}${l.waiting.length ? ` +${l.waiting.length}` : ''}</text><title>${shown(`lock ${l.name}, ${l.waiting.length} wait`, 120)}</title></g>`)}
    </svg>${pointed && spots.has(pointed.id) && html`<${Card} peer=${pointed} at=${spots.get(pointed.id)} width=${width} height=${height} locks=${locks} />`}</div>
    <p class="key"><span><i class="sign voter"></i>voter</span><span><i class="sign leads"></i>leader</span>${list.some(p => p.role === 'learner') && html`<span><i class="sign learner"></i>learner</span>`}<span><i class="sign"></i>peer</span><span><i class="sign lock"></i>lock</span>${active.length > 0 && html`<span><i class="sign grant"></i>grant</span>`}
      ${beyond > 0 && html`<span><a href="#/peers">${beyond} more ${beyond === 1 ? 'peer is' : 'peers are'} not drawn</a></span>`}${locks?.length > mostLocks && html`<span><a href="#/locks">${locks.length - mostLocks} more locks</a></span>`}${active.length > mostGrants && html`<span><a href="#/grants">${active.length - mostGrants} more grants</a></span>`}
      ${shownLocks.some(l => !spots.has(holderOf(l))) && html`<span>a lock in the corner is held by a program whose peer is not known</span>`}
      <span class="last">${last && html`<b>${last.way.map(id => nameOfPeer(id) || short(id)).filter((n, i, all) => n !== all[i - 1]).join(' → ')}</b> <${Text} most=${70}>${last.text}<//>`}</span></p></section>`;
}
